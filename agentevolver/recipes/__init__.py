"""Recipes: methods tried beside the core. Each is one folder that `rm -r` removes."""

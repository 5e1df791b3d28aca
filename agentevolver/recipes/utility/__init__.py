"""Paired utility: experiences are ranked and pruned by their measured effect on success."""

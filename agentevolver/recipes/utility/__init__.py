"""Paired utility: experiences ranked and pruned by what they change."""

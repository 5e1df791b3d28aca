"""Filters that keep a pool of tasks free of duplicates and of evaluation tasks."""

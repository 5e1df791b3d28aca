"""Contexts: what the policy sees each turn, and which training samples an episode becomes.
Imports neither torch nor verl."""

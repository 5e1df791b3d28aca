"""Rollouts: one episode, token in and token out."""

"""Rollouts: one episode, token ids in and token ids out."""

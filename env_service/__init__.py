"""Gym-style environments behind HTTP, hosted by Ray."""

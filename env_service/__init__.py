"""Gym-style environments behind HTTP, hosted by Ray. Imports nothing of the other packages."""

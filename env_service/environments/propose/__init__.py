"""Proposals of tasks for another world: one message, read, checked and refused by name where it is none."""

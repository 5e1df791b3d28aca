"""Self-questioning: makes synthetic tasks, mixes them with original ones, and grades rollouts."""

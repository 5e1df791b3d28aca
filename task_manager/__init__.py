"""Self-questioning: where the tasks come from."""

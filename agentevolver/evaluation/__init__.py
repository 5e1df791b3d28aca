"""Evaluation: a policy or a chat model plays a split of an environment, and what it reached is told with its
interval."""

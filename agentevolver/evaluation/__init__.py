"""Evaluation: a policy or a chat model plays a split of an environment; results come with 95 % intervals."""

"""The configuration reference: every key, its default, its meaning, who reads it; `python -m
agentevolver.config.reference` writes it."""

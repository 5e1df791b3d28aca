"""Proposals of tasks for another world: one message, parsed and checked. Each kind of refusal has a name."""

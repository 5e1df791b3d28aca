"""BFCL v3 multi-turn: conversations over simulated APIs, graded by the benchmark's own checkers."""

from env_service.environments.bfcl.env import BfclEnv

__all__ = ["BfclEnv"]

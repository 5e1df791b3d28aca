"""PocketWorld: the built-in environment. Deterministic, standard library only, small enough to be learnt on a CPU in minutes."""

from env_service.environments.pocket.env import PocketEnv

__all__ = ["PocketEnv"]

"""PocketWorld: the built-in environment. Deterministic, standard library only, small enough to be learnt on a CPU in
minutes."""

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.long_env import PocketLongEnv

__all__ = ["PocketEnv", "PocketLongEnv"]

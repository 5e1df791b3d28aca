"""TextWorld: generated text adventures with a walkthrough each, as long as their level makes them."""

from env_service.environments.textworld.env import TextworldEnv

__all__ = ["TextworldEnv"]

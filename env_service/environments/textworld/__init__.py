"""TextWorld: generated text adventures with a walkthrough; the level sets its length."""

from env_service.environments.textworld.env import TextworldEnv

__all__ = ["TextworldEnv"]

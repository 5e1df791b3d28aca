"""Gymnasium environments in words: discrete and text spaces behind a describer."""

from env_service.environments.gymnasium.env import GymnasiumEnv
from env_service.environments.gymnasium.world import World

__all__ = ["GymnasiumEnv", "World"]

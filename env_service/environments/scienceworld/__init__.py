"""ScienceWorld: elementary science in a simulated house, in episodes of up to a hundred commands with sub-goals."""

from env_service.environments.scienceworld.env import ScienceworldEnv

__all__ = ["ScienceworldEnv"]

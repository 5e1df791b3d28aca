"""A catalogue of thousands of tools, searched and loaded by the agent."""

from env_service.environments.catalogue.env import CatalogueEnv

__all__ = ["CatalogueEnv"]

"""WebShop: search and buy in a web shop of the user's data, or of a synthetic catalogue."""

from env_service.environments.webshop.env import WebshopEnv

__all__ = ["WebshopEnv"]

"""tau2-bench: customer service in airline, retail and telecom, with the benchmark's own verdict."""

from env_service.environments.tau2.env import Tau2Env

__all__ = ["Tau2Env"]

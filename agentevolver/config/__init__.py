"""Hydra configuration files: `agentevolver.yaml` and the `device` group."""

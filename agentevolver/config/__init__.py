"""Configuration: composition, checks and typed models; Hydra files `agentevolver.yaml` and the group `device`."""

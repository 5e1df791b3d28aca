"""The trainer: verl's PPO trainers with the rollouts, validation and records of this project."""

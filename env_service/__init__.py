"""Gym-style environments behind HTTP, hosted by Ray."""

from agentevolver.utils.process_environment import prepare_process

prepare_process()

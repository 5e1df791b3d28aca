"""AgentEvolver, reimplemented: an agent that makes its own tasks,
learns from its own experience and judges its own steps."""

from agentevolver.utils import moved

__version__ = "0.1.0"

moved.install()

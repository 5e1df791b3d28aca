"""AgentEvolver, reimplemented: agents that question, navigate and attribute themselves."""

from agentevolver.utils import moved

__version__ = "0.1.0"

moved.install()

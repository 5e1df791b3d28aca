"""AgentEvolver, reimplemented: agents that question, navigate and attribute themselves."""

from agentevolver.utils import process_environment

__version__ = "0.1.0"

process_environment.prepare_process()

"""AgentEvolver, reimplemented: agents that question, navigate and attribute themselves."""

__version__ = "0.1.0"

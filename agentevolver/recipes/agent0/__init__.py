"""Agent0: a proposer makes tasks of the right difficulty for an executor, which learns from them."""

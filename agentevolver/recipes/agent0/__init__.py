"""Two agents that raise each other: a proposer makes tasks at the frontier of an executor, which learns from them."""

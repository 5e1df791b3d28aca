"""Experience pool (self-navigating): distils advice from finished rollouts and injects it into later prompts."""

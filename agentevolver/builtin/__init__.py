"""Built-in stand-ins: the seed policy in place of a downloaded model, the rule-based teacher in place of an LLM API."""

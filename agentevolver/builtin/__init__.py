"""The built-in stand-ins: the seed policy, and the rule-based teacher of offline runs."""

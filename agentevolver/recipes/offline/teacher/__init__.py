"""Rule-based stand-in for a language model that plays all roles in the pocket worlds: see the recipe's README.md."""

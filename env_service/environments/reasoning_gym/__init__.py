"""The generators of the package reasoning-gym as an environment: a question, one answer, the package's own verdict."""

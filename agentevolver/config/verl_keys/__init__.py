"""verl's keys as a person sets them: what nothing would read is refused,
and so is a value that verl would fail on minutes later.

`check` looks at the keys of the user's layers alone, imports neither torch nor verl, and answers with one line.
"""

from agentevolver.config.verl_keys.check import Layer, check

__all__ = ["Layer", "check"]

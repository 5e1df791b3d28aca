"""Screen for answers that the package's scorers evaluate: no code."""

from __future__ import annotations

import ast
import re

LISTS = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
"""Generators whose scorer takes an answer for a Python expression."""
FORMULAS = frozenset(
    {"countdown", "puzzle24", "polynomial_multiplication", "simple_integration", "intermediate_integration"}
)
"""Generators whose scorer hands an answer to sympy, which evaluates it as Python."""
EVALUATED = LISTS | FORMULAS
LONGEST = 10_000

_WORD = "sin|cos|tan|sec|csc|cot|asin|acos|atan|sinh|cosh|tanh|exp|log|ln|sqrt|Abs|pi|[A-Za-z]"
_FORMULA = re.compile(rf"(?:\d+(?:\.\d+)?|\b(?:{_WORD})\b|\*\*|[-+*/^(),\s])*", re.ASCII)


def is_harmless(name: str, answer: str) -> bool:
    """Whether an answer may be scored: a literal, or a formula of numbers, one-letter names and common functions.
    Anything, if the scorer evaluates nothing."""
    if name in LISTS:
        return _is_no_code(answer)
    return name not in FORMULAS or (len(answer) <= LONGEST and _FORMULA.fullmatch(answer) is not None)


def _is_no_code(answer: str) -> bool:
    try:
        ast.literal_eval(answer.strip())
    except (SyntaxError, MemoryError, RecursionError):
        return len(answer) <= LONGEST and not _parses(answer)
    except ValueError:
        return False
    return True


def _parses(answer: str) -> bool:
    try:
        ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True

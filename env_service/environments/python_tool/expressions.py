"""Runs in the grader's sandbox: whether two expressions are equal by math-verify, and whether the answer states a
value.

Its text is sent there (`checkers.same_expression`), so it imports nothing of the project.
"""

from __future__ import annotations

from typing import Any

import sympy
from math_verify import LatexExtractionConfig, parse, verify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

UNREADABLE = "unreadable"


def verdict(reference: str, answer: str) -> str:
    gold, given = _parsed(reference), _parsed(answer)
    if not gold:
        return UNREADABLE
    # The order matters: math-verify gives up on an expression without end, and what equals the reference has one.
    return str(bool(verify(gold, given)) and is_worked_out(given[0], gold[0]))


def is_worked_out(answer: Any, reference: Any) -> bool:
    """Whether an answer states a value: no equation but `name = value`, and no part left to compute.

    `(7*8-50)/2`, `4=3` and `x+1+2` do not; `x=3`, `3/4`, `3*10^5` and `(x+1)^2` do. If the reference does not state a
    value itself, the answer need not either.
    """
    if isinstance(answer, str):  # what math-verify does not understand is equal by its text alone
        return True
    if not isinstance(reference, str) and _relations(reference):
        return True
    if not all(isinstance(relation, sympy.Eq) and _is_name(relation.lhs) for relation in _relations(answer)):
        return False
    return not _is_open(answer) or _is_open(reference)


def _parsed(text: str) -> list[Any]:
    found: list[Any] = parse("\\boxed{" + text + "}", [LatexExtractionConfig(boxed_match_priority=0)])
    return found


def _relations(expression: Any) -> list[Any]:
    return [part for part in _parts(expression) if isinstance(part, Relational)]


def _is_name(expression: Any) -> bool:
    return isinstance(expression, sympy.Symbol | AppliedUndef)


def _parts(expression: Any) -> list[Any]:
    if isinstance(expression, sympy.MatrixBase):
        return [part for entry in expression for part in _parts(entry)]
    return list(sympy.preorder_traversal(expression))


def _is_open(expression: Any) -> bool:
    return not isinstance(expression, str) and any(_is_to_be_computed(part) for part in _parts(expression))


def _is_to_be_computed(part: Any) -> bool:
    """Whether a part is a rational number in another form, or a sum or product with two numbers."""
    if not isinstance(part, sympy.Expr) or _is_numeral(part):
        return False
    if not part.free_symbols and isinstance(part.doit(), sympy.Rational):
        return True
    if isinstance(part, sympy.Add):
        return sum(isinstance(term, sympy.Number) for term in part.args) > 1
    if isinstance(part, sympy.Mul):
        factors = [factor for factor in part.args if isinstance(factor, sympy.Number) and factor not in (1, -1)]
        return len(factors) > 1
    return False


def _is_numeral(part: Any) -> bool:
    """Whether a part is written as one number: 3, 3/4, 0.5, 1/3 as a power, 10^5, -3*10^5."""
    if isinstance(part, sympy.Number):
        return True
    if isinstance(part, sympy.Pow):
        return isinstance(part.base, sympy.Integer) and (
            part.exp == -1 or (part.base == 10 and isinstance(part.exp, sympy.Integer))
        )
    if isinstance(part, sympy.Mul):
        rest = [factor for factor in part.args if factor not in (1, -1)]
        return len(rest) <= 1 + any(isinstance(factor, sympy.Pow) for factor in rest) and all(
            _is_numeral(factor) for factor in rest
        )
    return False

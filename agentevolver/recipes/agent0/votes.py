r"""Votes over final answers: which answers are equal, which is the most frequent, and the share that gave a label.

Each answer gets a canonical form: a number its value (`1/2`, `0.5` and `\frac12` are equal), other text without
typesetting. Equal forms are one class. Numbers that are not integers are also equal within the worlds' grading
tolerance; since that is not transitive, union-find joins the classes. An episode without an answer counts in the
denominator and belongs to no class.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from agentevolver.recipes.agent0.types import Measurement
from env_service.environments.python_tool.checkers import LONGEST_ANSWER, RELATIVE_TOLERANCE, comparable, parse_number

Canonical = Fraction | str


def canonical(answer: str | None) -> Canonical | None:
    """Return the value of a number, or other text as it is compared. None if there is no answer: missing, blank, or
    longer than any world grades."""
    if answer is None or len(answer) > LONGEST_ANSWER:
        return None
    number = parse_number(answer)
    return number if number is not None else comparable(answer) or None


def same(first: str | None, second: str | None) -> bool:
    """Whether two answers are equal; False if either is None or blank."""
    one, other = canonical(first), canonical(second)
    return one is not None and other is not None and _same_form(one, other)


def _same_form(one: Canonical, other: Canonical) -> bool:
    if one == other:
        return True
    if isinstance(one, str) or isinstance(other, str) or 1 in (one.denominator, other.denominator):
        return False
    return abs(one - other) <= RELATIVE_TOLERANCE * min(abs(one), abs(other))


def tally(answers: Sequence[str | None]) -> list[list[int]]:
    """Return the classes of answers as lists of indices, in order of first appearance. The result does not depend on
    the order of comparison."""
    forms: dict[Canonical, list[int]] = {}
    for i, answer in enumerate(answers):
        if (form := canonical(answer)) is not None:
            forms.setdefault(form, []).append(i)
    parents = list(range(len(forms)))

    def root(i: int) -> int:
        while parents[i] != i:
            i = parents[i]
        return i

    for (i, one), (j, other) in combinations(enumerate(forms), 2):
        # The earlier root stays: a class has the place of its first answer.
        low, high = sorted((root(i), root(j)))
        if low != high and _same_form(one, other):
            parents[high] = low
    classes: dict[int, list[int]] = {}
    for i, members in enumerate(forms.values()):
        classes.setdefault(root(i), []).extend(members)
    return [sorted(members) for members in classes.values()]


def share(answers: Sequence[str | None], label: str) -> float:
    """Return the share of answers equal to the label; missing answers count in the denominator. Raises ValueError if
    there are no answers."""
    if not answers:
        raise ValueError("a share of no episodes: the task was not measured")
    return sum(same(label, answer) for answer in answers) / len(answers)


def measured(answers: Sequence[str | None], calls: Sequence[int], label: str | None = None) -> Measurement:
    """Return the measurement of k episodes from their final answers (None if missing) and tool calls.

    Without `label` the most frequent answer counts as right, the earliest of equal ones. Raises ValueError if there are
    no episodes, or the lengths differ.
    """
    if not answers or len(answers) != len(calls):
        raise ValueError(f"{len(answers)} answers and {len(calls)} numbers of calls; both must be equal and at least 1")
    votes = [(str(answers[members[0]]).strip(), len(members)) for members in tally(answers)]
    vote, count = max(votes, key=lambda pair: pair[1], default=("", 0))
    return Measurement(
        answers=tuple(None if canonical(answer) is None else answer for answer in answers),
        calls=tuple(calls),
        label=vote if label is None else label,
        p=count / len(answers) if label is None else share(answers, label),
        vote=vote,
        p_vote=count / len(answers),
        votes=tuple(votes),
    )

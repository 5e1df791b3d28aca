r"""Votes over final answers: which of them are one answer, which is the most frequent, and the share that gave a label.

Every answer is put into a canonical form once: a number by its value (`1/2`, `0.5` and `\frac12` are one), any other
text without what only typesets it. Equal forms are one class; numbers that are no integers are also one within the
tolerance that the worlds grade by, and a world may bring an equality of its own. These two are not transitive, so
classes are what union-find joins. An episode without an answer counts in the denominator and is in no class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from agentevolver.coevolve.types import Measurement
from env_service.environments.python_tool.checkers import LONGEST_ANSWER, RELATIVE_TOLERANCE, comparable, parse_number

# Whether two answers are equal that are not the same number or text.
Equality = Callable[[str, str], bool]
Canonical = Fraction | str


@dataclass(frozen=True, slots=True)
class Tally:
    """The classes of k answers, each as the indices of its members, in the order of their first appearance.

    `names` are the first answers of the classes.
    """

    k: int
    classes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]

    @property
    def winner(self) -> int | None:
        """The class with the most members, of equal ones the earliest; None if nobody answered."""
        return max(range(len(self.classes)), key=lambda i: (len(self.classes[i]), -i), default=None)

    @property
    def table(self) -> tuple[tuple[str, int], ...]:
        """Name and number of members of each class."""
        return tuple((name, len(members)) for name, members in zip(self.names, self.classes, strict=True))


def canonical(answer: str | None) -> Canonical | None:
    """Return the value of a number, any other text as it is compared, or None for no answer: none was given, it is
    blank, or longer than any world grades."""
    if answer is None or len(answer) > LONGEST_ANSWER:
        return None
    number = parse_number(answer)
    return number if number is not None else comparable(answer) or None


def same(first: str | None, second: str | None, equal: Equality | None = None) -> bool:
    """Whether two answers are one; False where either is none.

    `equal` is asked for what is neither the same number nor the same text.
    """
    one, other = canonical(first), canonical(second)
    if first is None or second is None or one is None or other is None:
        return False
    return _same_form(one, other) or (equal is not None and equal(first, second))


def _same_form(one: Canonical, other: Canonical) -> bool:
    if one == other:
        return True
    if isinstance(one, str) or isinstance(other, str) or 1 in (one.denominator, other.denominator):
        return False
    return abs(one - other) <= RELATIVE_TOLERANCE * min(abs(one), abs(other))


def tally(answers: Iterable[str | None], equal: Equality | None = None) -> Tally:
    """Return the classes of the answers; which of them are one does not depend on their order.

    `equal` is asked about each pair of different forms, in the order of their appearance; it should be symmetric.
    """
    given = list(answers)
    forms: dict[Canonical, list[int]] = {}
    for i, answer in enumerate(given):
        if (form := canonical(answer)) is not None:
            forms.setdefault(form, []).append(i)
    texts = [given[members[0]] or "" for members in forms.values()]
    parents = list(range(len(forms)))

    def root(i: int) -> int:
        while parents[i] != i:
            i = parents[i]
        return i

    for (i, one), (j, other) in combinations(enumerate(forms), 2):
        # The earlier root stays: a class has the place of its first answer.
        low, high = sorted((root(i), root(j)))
        if low != high and (_same_form(one, other) or (equal is not None and equal(texts[i], texts[j]))):
            parents[high] = low
    classes: dict[int, list[int]] = {}
    for i, members in enumerate(forms.values()):
        classes.setdefault(root(i), []).extend(members)
    return Tally(
        len(given),
        tuple(tuple(sorted(members)) for members in classes.values()),
        tuple(texts[i].strip() for i in classes),
    )


def share(answers: Sequence[str | None], label: str, equal: Equality | None = None) -> float:
    """Return the share of all answers, those that were not given included, that are the label.

    Raises ValueError if there are no answers.
    """
    if not answers:
        raise ValueError("a share of no episodes: the task was not measured")
    return sum(same(label, answer, equal) for answer in answers) / len(answers)


def measured(
    answers: Sequence[str | None], calls: Sequence[int], label: str | None = None, equal: Equality | None = None
) -> Measurement:
    """Return what k episodes made of a task.

    Args:
        answers: (k) the final answers, None where there is none.
        calls: (k) the tool calls that were carried out.
        label: the answer that counts as right; None takes the most frequent one.
        equal: a world's equality of answers.

    Raises:
        ValueError: for no episodes, or not as many calls as answers.
    """
    if not answers or len(answers) != len(calls):
        raise ValueError(f"{len(answers)} answers and {len(calls)} numbers of calls, expected as many, and at least 1")
    counted = tally(answers, equal)
    won = counted.winner
    vote, p_vote = ("", 0.0) if won is None else (counted.names[won], len(counted.classes[won]) / counted.k)
    return Measurement(
        answers=tuple(None if canonical(answer) is None else answer for answer in answers),
        calls=tuple(calls),
        label=vote if label is None else label,
        p=p_vote if label is None else share(answers, label, equal),
        vote=vote,
        p_vote=p_vote,
        votes=counted.table,
    )

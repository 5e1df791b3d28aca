"""States of a world as flat facts, their differences, and the state check of a task.

A check holds what the reference solution changed, a digest of everything else, and its answer. A rollout passes if it
ends in the same state with the same answer, by whatever route.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

import orjson

Facts = dict[str, Any]
# Stands for null: None means that a fact is absent.
NULL_VALUE = "(nothing)"
_NUMBER = re.compile(r"[+-]?(\d{1,30}|\d{1,3}(,\d{3}){1,9})?(\.\d{1,30})?(/\d{1,30})?(?<=\d)")


@dataclass(frozen=True, slots=True)
class WorldState:
    """State of an instance.

    `exact`: equal facts mean equal states. `finished`, `answer`: None if unknown or not given. `prose`: answers are
    sentences, which need a judge.
    """

    facts: Facts
    answer: str | None = None
    finished: bool | None = None
    exact: bool = True
    prose: bool = False


def flatten(tree: Mapping[str, Any]) -> Facts:
    """Flatten nested objects to facts by path (`a/b`). Lists are values; an empty object is a fact."""
    facts: Facts = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, Mapping) and (value or not path):
            for key, item in value.items():
                walk(item, (*path, str(key).replace("~", "~0").replace("/", "~1")))
        else:
            facts["/".join(path)] = NULL_VALUE if value is None else value

    walk(tree, ())
    return facts


@dataclass(frozen=True, slots=True)
class StateChange:
    """One fact that differs; None means absent."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.path} is new: {_shown(self.after)}"
        return f"{self.path}: {_shown(self.before)} -> {'gone' if self.after is None else _shown(self.after)}"


def difference(before: Facts, after: Facts) -> list[StateChange]:
    return [
        StateChange(p, before.get(p), after.get(p)) for p in sorted({*before, *after}) if before.get(p) != after.get(p)
    ]


def digest(facts: Facts, without: Iterable[str] = ()) -> str:
    left_out = set(without)
    kept = {path: value for path, value in facts.items() if path not in left_out}
    return hashlib.sha256(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def same_answer(given: str | None, wanted: str) -> bool:
    """Compare answers, ignoring case, surrounding space and a final full stop; numbers by value (`0.50` = `1/2`)."""
    if given is None:
        return False
    one, other = (text.strip().rstrip(".").strip().casefold() for text in (given, wanted))
    if one == other:
        return True
    number = _number(one)
    return number is not None and number == _number(other)


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", "")) if _NUMBER.fullmatch(text) else None
    except (ValueError, ZeroDivisionError):
        return None


@dataclass(frozen=True, slots=True)
class StateCheck:
    """The state check of a task. With `prose`, any answer passes."""

    changes: list[StateChange] = field(default_factory=list)
    rest: str = ""
    answer: str | None = None
    must_finish: bool = False
    prose: bool = False

    @classmethod
    def of(cls, before: WorldState, after: WorldState) -> StateCheck:
        """Build the check that a rollout from `before` to `after` passes."""
        changes = difference(before.facts, after.facts)
        rest = digest(after.facts, (change.path for change in changes))
        return cls(
            changes,
            rest,
            after.answer or None,
            must_finish=bool(after.finished),
            prose=after.prose and bool(after.answer),
        )

    @property
    def decides(self) -> bool:
        """Whether the check tells solving the task from doing nothing."""
        return bool(self.changes) or (self.answer is not None and not self.prose)

    def judge(self, now: WorldState) -> list[tuple[str, bool]]:
        """Return each condition of the check as text, and whether `now` meets it."""
        results = [("finished", bool(now.finished))] if self.must_finish else []
        if self.answer is not None:
            right = bool(now.answer) if self.prose else same_answer(now.answer, self.answer)
            results.append(("an answer was given" if self.prose else f"answer is {self.answer}", right))
        for change in self.changes:
            goal = "gone" if change.after is None else _shown(change.after)
            results.append((f"{change.path} is {goal}", now.facts.get(change.path) == change.after))
        results.append(
            ("nothing else changed", digest(now.facts, (change.path for change in self.changes)) == self.rest)
        )
        return results

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StateCheck:
        """Parse a check; raises ValueError."""
        try:
            changes = [StateChange(**change) for change in data["changes"]]
            return cls(
                changes, str(data["rest"]), data["answer"], bool(data["must_finish"]), bool(data.get("prose", False))
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state check: {error}") from error


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."

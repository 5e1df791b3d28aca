"""The state of a world as flat facts, what changed between two of them, and a task's machine check made of that.

A check holds what the reference solution changed (path and goal value), a digest of everything it left alone, and the
answer it gave. So a rollout passes exactly if it leaves the world as the reference does and answers the same; nothing
of the reference's way there counts.
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
# Stands for a value of null, since None stands for a fact that is not there.
NOTHING = "(nothing)"
_NUMBER = re.compile(r"[+-]?(\d{1,30}|\d{1,3}(,\d{3}){1,9})?(\.\d{1,30})?(/\d{1,30})?(?<=\d)")


@dataclass(frozen=True, slots=True)
class WorldState:
    """State that an environment tells of an instance.

    `exact` tells whether equal facts mean equal states; `finished` is None where an environment does not say it, and
    `answer` None where none was given. `prose` tells that answers are sentences, which only a reader can compare.
    """

    facts: Facts
    answer: str | None = None
    finished: bool | None = None
    exact: bool = True
    prose: bool = False


def flatten(tree: Mapping[str, Any]) -> Facts:
    """Return nested objects as facts by path (keys joined by `/`); lists are values, empty objects are facts too."""
    facts: Facts = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, Mapping) and (value or not path):
            for key, item in value.items():
                walk(item, (*path, str(key).replace("~", "~0").replace("/", "~1")))
        else:
            facts["/".join(path)] = NOTHING if value is None else value

    walk(tree, ())
    return facts


@dataclass(frozen=True, slots=True)
class Change:
    """One fact that differs; None stands for an absent one."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.path} is new: {_shown(self.after)}"
        return f"{self.path}: {_shown(self.before)} -> {'gone' if self.after is None else _shown(self.after)}"


def difference(before: Facts, after: Facts) -> list[Change]:
    """Return what differs between two states, in the order of the paths."""
    return [Change(p, before.get(p), after.get(p)) for p in sorted({*before, *after}) if before.get(p) != after.get(p)]


def digest(facts: Facts, without: Iterable[str] = ()) -> str:
    """Return a hash of facts, some paths left out."""
    left_out = set(without)
    kept = {path: value for path, value in facts.items() if path not in left_out}
    return hashlib.sha256(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def same_answer(given: str | None, wanted: str) -> bool:
    """Compare answers up to case, surrounding space and a closing full stop;
    numbers by their value (`0.50` and `1/2` are `.5`)."""
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
    """The machine check of a task; JSON-ready through `to_dict`.

    With `prose` the answer is a sentence: `judge` says whether one was given, and whether it is right is another's to
    say.
    """

    changes: list[Change] = field(default_factory=list)
    rest: str = ""
    answer: str | None = None
    must_finish: bool = False
    prose: bool = False

    @classmethod
    def of(cls, before: WorldState, after: WorldState) -> StateCheck:
        """Return the check that the way from `before` to `after` passes; an empty answer is none."""
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
        """Whether it tells doing the task from doing nothing; that a sentence was said does not."""
        return bool(self.changes) or (self.answer is not None and not self.prose)

    def judge(self, now: WorldState) -> list[tuple[str, bool]]:
        """Return what must hold, in words, and whether it does."""
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
        """Return the check as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StateCheck:
        """Read a check; raises ValueError if it is none."""
        try:
            changes = [Change(**change) for change in data["changes"]]
            return cls(
                changes, str(data["rest"]), data["answer"], bool(data["must_finish"]), bool(data.get("prose", False))
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state check: {error}") from error


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."

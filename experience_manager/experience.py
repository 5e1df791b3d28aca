"""An experience: text, scope, provenance and counters; merging of duplicates; and ReMe's dump format.

Near-duplicates of one scope are merged: the wording distilled most often stands, and the others stay as variants, so
that a wrong one is outvoted. Embeddings alone cannot tell a claim from its contrary (measured cosine 0.92-0.99).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

import numpy as np
import orjson

from agentevolver.utils.scripts import spaced
from agentevolver.utils.vectors import Mask

BETWEEN = "|"
# A scope of more places than this becomes "everywhere".
MAX_PLACES = 32
EVERYWHERE = " "
"""Place of a scope without places; every text names it."""


def places_in(scope: str) -> tuple[str, ...]:
    """Return the places of a scope as written; empty if it holds everywhere."""
    return tuple(place for part in scope.split(BETWEEN) if (place := part.strip()))


def places_of(scope: str) -> frozenset[str]:
    """Return a scope's places, normalised for comparison; `EVERYWHERE` if it names none."""
    return frozenset(map(_words, places_in(scope) or ("",)))


def covers(scope: str, other: str) -> bool:
    """Return whether a scope names every place of another; "" (everywhere) covers only ""."""
    return places_of(scope) >= places_of(other)


def union(scope: str, other: str) -> str:
    """Return a scope with the places of both; "" (everywhere) if either is "", or above `MAX_PLACES`."""
    if covers(scope, other):
        return scope
    if EVERYWHERE in places_of(scope) | places_of(other):
        return ""
    named = {_words(place): place for place in (*places_in(other), *places_in(scope))}
    written = [named.pop(_words(place)) for place in (*places_in(scope), *places_in(other)) if _words(place) in named]
    return f" {BETWEEN} ".join(written) if len(written) <= MAX_PLACES else ""


def mentions(text: str, place: str) -> bool:
    """Return whether a text names a place; every text names ""."""
    return _words(place) in _words(text)


class Scopes:
    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._codes_at: dict[str, list[int]] = {}
        self._lengths: set[int] = set()

    def code(self, scope: str) -> int:
        if (known := self._codes.get(scope)) is not None:
            return known
        code = self._codes[scope] = len(self._codes)
        for place in places_of(scope):
            self._codes_at.setdefault(place, []).append(code)
            self._lengths.add(len(place.split()))
        return code

    def covering(self, scope: str) -> Mask:
        return self._mask(set.intersection(*(set(self._codes_at.get(place, ())) for place in places_of(scope))))

    def named_by(self, text: str) -> Mask:
        """Return a mask of the scopes with a place that the text names."""
        # Looks up the text's spans instead of scanning the scopes: the cost does not grow with their number.
        words = _words(text).split()
        spans = {f" {' '.join(words[i : i + n])} " for n in self._lengths if n for i in range(len(words) - n + 1)} | {
            EVERYWHERE
        }
        return self._mask(code for place in spans & self._codes_at.keys() for code in self._codes_at[place])

    def _mask(self, codes: Iterable[int]) -> Mask:
        mask = np.zeros(len(self._codes), dtype=np.bool_)
        mask[list(codes)] = True
        return mask


def _words(text: str) -> str:
    # With a blank at both ends, a substring test finds whole words only.
    words = re.findall(r"\w+", spaced(text.casefold()))
    return f" {' '.join(words)} " if words else EVERYWHERE


MAX_VARIANTS = 8
MAX_TRAJECTORY_IDS = 64
# Author of experiences that a person wrote or edited. These are shown to policies unscreened.
PERSON = "manual"
# Key of our own fields in a dump's metadata.
_OWN = "agentevolver"
_TIME = "%Y-%m-%d %H:%M:%S"
_YEAR_9999 = 253_370_764_800.0


class RecordError(ValueError):
    """Data is not an experience."""


class Category(StrEnum):
    """What an experience was distilled from."""

    SUCCESS = "success"
    FAILURE = "failure"
    COMPARATIVE = "comparative"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Variant:
    """Another wording of an experience; `support` counts how often it was distilled."""

    when_to_use: str
    content: str
    support: int
    validation_score: float


@dataclass(frozen=True, slots=True)
class Experience:
    """One piece of advice, with its scope, provenance and counters.

    `scope` names the places where it holds (`places_in`), or is "" for everywhere. `validation_score` is the judge's,
    0..1. `uses` counts guided training rollouts, `successes` the successful ones. `compared` counts the uses with
    unguided siblings; `lift_sum` adds up success minus the siblings' mean success, each -1..1. `paired`,
    `paired_utility` and `paired_precision` belong to a ranking (`exp_manager.ranking`). `support` counts how often it
    was distilled. Times are Unix seconds.
    """

    when_to_use: str
    content: str
    scope: str = ""
    category: Category = Category.MANUAL
    validation_score: float = 1.0
    confidence: float = 1.0
    id: str = field(default_factory=lambda: uuid4().hex)
    workspace: str = "default"
    uses: int = 0
    successes: int = 0
    compared: int = 0
    lift_sum: float = 0.0
    paired: int = 0
    paired_utility: float = 0.0
    paired_precision: float = 0.0
    support: int = 1
    pinned: bool = False
    author: str = ""
    created: float = 0.0
    modified: float = 0.0
    step: int | None = None
    task_query: str = ""
    task_ids: tuple[str, ...] = ()
    trajectory_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def by_person(self) -> bool:
        return self.author == PERSON

    @property
    def utility(self) -> float | None:
        """Success rate over `uses`, or None before the first use."""
        return self.successes / self.uses if self.uses else None

    @property
    def lift(self) -> float | None:
        """Mean advantage over unguided siblings, or None without a comparison."""
        return self.lift_sum / self.compared if self.compared else None

    def embedded_text(self, kind: str) -> str:
        """Return the text to embed: `when_to_use`, or `when_to_use+content`."""
        return self.when_to_use if kind == "when_to_use" else f"{self.when_to_use}\n{self.content}"

    @property
    def wording(self) -> tuple[str, str]:
        """Both texts normalised; experiences of equal wording are duplicates."""
        return normal(self.when_to_use), normal(self.content)


def normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def join(standing: Experience, newcomer: Experience) -> Experience:
    """Merge two near-duplicates under the id and counters of `standing`.

    The wording with more support stands; `standing` wins ties, and always if it is pinned. Equal wordings merge their
    scopes.
    """
    joined = replace(
        standing,
        task_ids=_merged(standing.task_ids, newcomer.task_ids),
        trajectory_ids=_merged(standing.trajectory_ids, newcomer.trajectory_ids)[:MAX_TRAJECTORY_IDS],
        modified=max(standing.modified, newcomer.modified),
    )
    if standing.wording == newcomer.wording:
        best = max(standing.validation_score, newcomer.validation_score)
        scope = union(standing.scope, newcomer.scope)
        return replace(joined, scope=scope, support=standing.support + newcomer.support, validation_score=best)
    rivals = {(normal(v.when_to_use), normal(v.content)): v for v in standing.variants}
    key = newcomer.wording
    rival = rivals.pop(key, Variant(newcomer.when_to_use, newcomer.content, 0, newcomer.validation_score))
    score = max(rival.validation_score, newcomer.validation_score)
    rival = replace(rival, support=rival.support + newcomer.support, validation_score=score)
    if rival.support > standing.support and not standing.pinned:
        loser = Variant(standing.when_to_use, standing.content, standing.support, standing.validation_score)
        joined = replace(
            joined,
            when_to_use=rival.when_to_use,
            content=rival.content,
            support=rival.support,
            validation_score=score,
            confidence=newcomer.confidence,
            category=newcomer.category,
            author=newcomer.author,
        )
        rival = loser
    ranked = sorted([*rivals.values(), rival], key=lambda v: -v.support)
    return replace(joined, variants=tuple(ranked[:MAX_VARIANTS]))


def to_reme(experience: Experience) -> dict[str, Any]:
    """Return a line of ReMe's dump files: freq is `uses`, utility `successes`, score `validation_score`."""
    own = {name: getattr(experience, name) for name in _OWN_FIELDS}
    own["variants"] = tuple(asdict(variant) for variant in experience.variants)
    return {
        "workspace_id": experience.workspace,
        "memory_id": experience.id,
        "memory_type": "task",
        "when_to_use": experience.when_to_use,
        "content": experience.content,
        "score": experience.validation_score,
        "time_created": _time_text(experience.created),
        "time_modified": _time_text(experience.modified),
        "author": experience.author,
        "metadata": {
            **experience.metadata,
            "tags": list(experience.tags),
            "confidence": experience.confidence,
            "category": experience.category.value,
            "task_query": experience.task_query,
            "freq": experience.uses,
            "utility": experience.successes,
            _OWN: own,
        },
    }


_SHARED = ("id", "workspace", "when_to_use", "content", "validation_score", "author", "metadata")
_OWN_FIELDS = tuple(one.name for one in fields(Experience) if one.name not in _SHARED)


def from_reme(data: Any, workspace: str | None = None) -> Experience:
    """Parse a decoded line of a first-generation ReMe dump; `workspace` overrides the line's. Raises RecordError."""
    if not isinstance(data, Mapping):
        raise RecordError(f"an experience is a JSON object, found {type(data).__name__}")
    for name in ("when_to_use", "content"):
        if not isinstance(data.get(name), str) or not data[name].strip():
            raise RecordError(f"{name} must be a text, found {data.get(name)!r}")
    try:
        metadata = _metadata(data.get("metadata"))
        own = metadata.pop(_OWN, {})
        known = _own_fields(own if isinstance(own, Mapping) else {})
        defaults = {
            "category": _category(metadata.pop("category", None)),
            "confidence": _number(metadata.pop("confidence", None), 1.0),
            "tags": _texts(metadata.pop("tags", ())),
            "task_query": str(metadata.pop("task_query", None) or ""),
            "uses": _count(metadata.pop("freq", None)),
            "successes": _count(metadata.pop("utility", None)),
            "created": _time(data.get("time_created")),
            "modified": _time(data.get("time_modified")),
        }
        experience = Experience(
            **{**defaults, **known},
            when_to_use=data["when_to_use"],
            content=data["content"],
            id=str(data.get("memory_id") or uuid4().hex),
            workspace=workspace or str(data.get("workspace_id") or "default"),
            validation_score=_number(data.get("score"), 0.0),
            author=str(data.get("author") or ""),
            metadata=metadata,
        )
        # Lone surrogates and integers beyond 64 bits are JSON, and cannot be stored.
        orjson.dumps(asdict(experience))
        return experience
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise RecordError(f"experience {data.get('memory_id')!r}: {error}") from error


def _metadata(raw: Any) -> dict[str, Any]:
    # Some versions of ReMe write the metadata as JSON inside a string.
    found = orjson.loads(raw) if isinstance(raw, str) and raw.strip() else raw
    return {str(key): value for key, value in found.items()} if isinstance(found, Mapping) else {}


def _own_fields(own: Mapping[str, Any]) -> dict[str, Any]:
    return {name: read(own[name]) for name, read in _READERS.items() if name in own}


def _merged(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _category(value: Any) -> Category:
    return Category(value) if value in set(Category) else Category.MANUAL


def _number(value: Any, default: float = 0.0) -> float:
    number = default if value is None else float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no finite number")
    return number


def _count(value: Any) -> int:
    number = int(_number(value))
    if not 0 <= number < 2**53:
        raise ValueError(f"{value!r} is no count")
    return number


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(filter(None, re.split(r"\s*,\s*", value)))
    return tuple(str(item) for item in value or ())


def _variants(value: Any) -> tuple[Variant, ...]:
    return tuple(
        Variant(str(v["when_to_use"]), str(v["content"]), _count(v.get("support")), _number(v.get("validation_score")))
        for v in value or ()
    )


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime(_TIME)


def _time(value: Any) -> float:
    if not isinstance(value, int | float):
        try:
            value = datetime.fromisoformat(str(value)).timestamp()
        except (ValueError, OverflowError):
            return 0.0
    return value if 0 <= value < _YEAR_9999 else 0.0


_READERS: dict[str, Callable[[Any], Any]] = {
    "scope": str,
    "category": _category,
    "confidence": _number,
    "uses": _count,
    "successes": _count,
    "compared": _count,
    "lift_sum": _number,
    "paired": _count,
    "paired_utility": _number,
    "paired_precision": lambda value: max(0.0, _number(value)),
    "support": _count,
    "pinned": bool,
    "created": _time,
    "modified": _time,
    "step": lambda value: None if value is None else _count(value),
    "task_query": str,
    "task_ids": _texts,
    "trajectory_ids": _texts,
    "tags": _texts,
    "variants": _variants,
}

"""What the pool holds: an experience, where it comes from, and what came of it; and its form in ReMe's dump files.

Immutable. Two experiences that say nearly the same about the same place are joined: the wording that was distilled most often stands, the
others are kept as variants, so that a wrong one is outvoted (embeddings cannot tell a claim from its contrary: measured cosine 0.92-0.99).
A record of a dump file that cannot be read raises RecordError, which names what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

MAX_VARIANTS = 8
MAX_TRAJECTORY_IDS = 64
# Where our own fields stand in the metadata of a dump, beside ReMe's.
_OWN = "agentevolver"
_TIME = "%Y-%m-%d %H:%M:%S"


class RecordError(ValueError):
    """Data that is no experience."""


class Category(StrEnum):
    """What an experience was distilled from."""

    SUCCESS = "success"
    FAILURE = "failure"
    COMPARATIVE = "comparative"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Variant:
    """Another wording of the same experience, and how often it was distilled."""

    when_to_use: str
    content: str
    support: int
    validation_score: float


@dataclass(frozen=True, slots=True)
class Experience:
    """One piece of advice.

    `scope` names the place where it holds, "" if it holds everywhere. `validation_score` is the judge's, 0..1. `uses` counts guided
    training rollouts and `successes` those of them that succeeded; `compared` counts the uses that had unguided siblings and `lift_sum`
    adds up how much better (1) or worse (-1) than their mean they did. `support` counts how often it was distilled. Times are Unix seconds.
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
    def utility(self) -> float | None:
        """The share of its uses that succeeded, None before the first."""
        return self.successes / self.uses if self.uses else None

    @property
    def lift(self) -> float | None:
        """How much better guided rollouts did than their unguided siblings, None where there is nothing to compare."""
        return self.lift_sum / self.compared if self.compared else None

    def embedded_text(self, kind: str) -> str:
        """Return what is embedded of it: `when_to_use` or `when_to_use+content`."""
        return self.when_to_use if kind == "when_to_use" else f"{self.when_to_use}\n{self.content}"

    @property
    def wording(self) -> tuple[str, str, str]:
        """What makes two experiences the same text."""
        return normal(self.scope), normal(self.when_to_use), normal(self.content)


def normal(text: str) -> str:
    """Return a text in which case and spacing do not matter."""
    return " ".join(text.split()).casefold()


def join(standing: Experience, newcomer: Experience) -> Experience:
    """Return two near-duplicates as one, under the id and counters of the one that stands.

    The wording with more support stands, the older one under equal support; a pinned one always does.
    """
    joined = replace(
        standing,
        task_ids=_merged(standing.task_ids, newcomer.task_ids),
        trajectory_ids=_merged(standing.trajectory_ids, newcomer.trajectory_ids)[:MAX_TRAJECTORY_IDS],
        modified=max(standing.modified, newcomer.modified),
    )
    if standing.wording == newcomer.wording:
        best = max(standing.validation_score, newcomer.validation_score)
        return replace(joined, support=standing.support + newcomer.support, validation_score=best)
    rivals = {(normal(v.when_to_use), normal(v.content)): v for v in standing.variants}
    key = newcomer.wording[1:]
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
        )
        rival = loser
    ranked = sorted([*rivals.values(), rival], key=lambda v: -v.support)
    return replace(joined, variants=tuple(ranked[:MAX_VARIANTS]))


def to_reme(experience: Experience) -> dict[str, Any]:
    """Return an experience as a line of ReMe's dump files: freq is `uses`, utility is `successes`, score is the validation's."""
    own = asdict(experience)
    shared = ("id", "workspace", "when_to_use", "content", "validation_score", "author", "metadata")
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
            _OWN: {name: value for name, value in own.items() if name not in shared},
        },
    }


def from_reme(data: Any, workspace: str | None = None) -> Experience:
    """Read a line of a ReMe dump, ours or any other's of the first generation.

    Args:
        data: the decoded line.
        workspace: where it belongs; None: what the line says.

    Raises:
        RecordError: it is no mapping, or its texts or numbers are none.
    """
    if not isinstance(data, Mapping):
        raise RecordError(f"an experience is a JSON object, found {type(data).__name__}")
    for name in ("when_to_use", "content"):
        if not isinstance(data.get(name), str) or not data[name].strip():
            raise RecordError(f"{name} must be a text, found {data.get(name)!r}")
    raw = data.get("metadata")
    metadata: dict[str, Any] = {str(key): value for key, value in raw.items()} if isinstance(raw, Mapping) else {}
    own = metadata.pop(_OWN, {})
    try:
        known = _own_fields(own if isinstance(own, Mapping) else {})
        defaults = {
            "category": _category(metadata.pop("category", None)),
            "confidence": _number(metadata.pop("confidence", None), 1.0),
            "tags": _texts(metadata.pop("tags", ())),
            "task_query": str(metadata.pop("task_query", None) or ""),
            "uses": int(_number(metadata.pop("freq", None), 0)),
            "successes": int(_number(metadata.pop("utility", None), 0)),
            "created": _time(data.get("time_created")),
            "modified": _time(data.get("time_modified")),
        }
        return Experience(
            **{**defaults, **known},
            when_to_use=data["when_to_use"],
            content=data["content"],
            id=str(data.get("memory_id") or uuid4().hex),
            workspace=workspace or str(data.get("workspace_id") or "default"),
            validation_score=_number(data.get("score"), 0.0),
            author=str(data.get("author") or ""),
            metadata=metadata,
        )
    except (TypeError, ValueError) as error:
        raise RecordError(f"experience {data.get('memory_id')!r}: {error}") from error


def _own_fields(own: Mapping[str, Any]) -> dict[str, Any]:
    names = set(Experience.__dataclass_fields__) - {"id", "workspace", "when_to_use", "content", "validation_score", "author", "metadata"}
    fields = {name: own[name] for name in names & own.keys()}
    for name in ("task_ids", "trajectory_ids", "tags"):
        if name in fields:
            fields[name] = _texts(fields[name])
    if "variants" in fields:
        fields["variants"] = tuple(Variant(**variant) for variant in fields["variants"])
    if "category" in fields:
        fields["category"] = _category(fields["category"])
    return fields


def _merged(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _category(value: Any) -> Category:
    return Category(value) if value in set(Category) else Category.MANUAL


def _number(value: Any, default: float) -> float:
    return default if value is None else float(value)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(filter(None, re.split(r"\s*,\s*", value)))
    return tuple(str(item) for item in value)


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime(_TIME)


def _time(value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return 0.0

"""An experience as a row of the store, and back. Nothing here begins or ends a transaction."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from experience_manager.experience import Category, Experience, Variant
from experience_manager.index import Vectors

_PLAIN = (
    *(
        "id",
        "workspace",
        "validation_score",
        "confidence",
        "uses",
        "successes",
        "compared",
        "lift_sum",
        "support",
        "created",
        "modified",
    ),
    *("step", "author", "scope", "when_to_use", "content", "task_query"),
)
COLUMNS = (*_PLAIN, "category", "pinned", "task_ids", "more")
SELECT = ", ".join(COLUMNS)
_COUNTERS = ("uses", "successes", "compared", "lift_sum")


def to_row(experience: Experience) -> tuple[Any, ...]:
    """Return the values of `COLUMNS`."""
    more = {
        "trajectory_ids": experience.trajectory_ids,
        "tags": experience.tags,
        "variants": [asdict(variant) for variant in experience.variants],
        "metadata": experience.metadata,
    }
    return (
        *(getattr(experience, name) for name in _PLAIN),
        experience.category.value,
        int(experience.pinned),
        orjson.dumps(experience.task_ids).decode(),
        orjson.dumps(more).decode(),
    )


def from_row(row: tuple[Any, ...]) -> Experience:
    """Read the values of `COLUMNS`."""
    values = dict(zip(COLUMNS, row, strict=True))
    more = orjson.loads(values.pop("more"))
    return Experience(
        **{
            **values,
            "category": Category(values["category"]),
            "pinned": bool(values["pinned"]),
            "task_ids": tuple(orjson.loads(values["task_ids"])),
            "trajectory_ids": tuple(more["trajectory_ids"]),
            "tags": tuple(more["tags"]),
            "variants": tuple(Variant(**variant) for variant in more["variants"]),
            "metadata": more["metadata"],
        }
    )


def update(
    db: sqlite3.Connection, experience: Experience, revision: int, vector: Vectors | None, *, reset: bool = False
) -> None:
    """Write all columns but the counters, which others may be adding to; `reset` sets those to 0."""
    values = {name: value for name, value in zip(COLUMNS, to_row(experience), strict=True) if name not in _COUNTERS}
    values["revision"] = revision
    values |= dict.fromkeys(_COUNTERS, 0) if reset else {}
    if vector is not None:
        values["vector"] = blob(vector)
    columns = ", ".join(f"{name} = ?" for name in values)
    key = (experience.workspace, experience.id)
    db.execute(f"UPDATE records SET {columns} WHERE workspace = ? AND id = ?", (*values.values(), *key))


def blob(vector: Vectors | None) -> bytes:
    """Return a vector as it is stored."""
    return b"" if vector is None else np.ascontiguousarray(vector, dtype=np.float32).tobytes()

"""Label cache by trajectory hash, and the log of label calls."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from advantage_processor.labels import StepLabel
from agentevolver.types import Attribution, Trajectory
from agentevolver.utils.files import whole
from agentevolver.utils.names import system_name

logger = logging.getLogger(__name__)

CAPACITY = 20_000


def trajectory_hash(*parts: Any) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


class LabelCache:
    """LRU cache of this process's labels."""

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._recent: OrderedDict[str, tuple[StepLabel, ...]] = OrderedDict()
        self._capacity = capacity

    def get(self, key: str) -> tuple[StepLabel, ...] | None:
        if key in self._recent:
            self._recent.move_to_end(key)
        return self._recent.get(key)

    def put(self, key: str, labels: Sequence[StepLabel]) -> None:
        self._recent[key] = tuple(labels)
        self._recent.move_to_end(key)
        if len(self._recent) > self._capacity:
            self._recent.popitem(last=False)


class ExchangeLog:
    """Log of label calls in `step_<n>/<trajectory id>.json`; None writes nothing. Write errors are logged once."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._failed = False

    def write(
        self, step: int, trajectory: Trajectory, attribution: Attribution, exchanges: Sequence[Mapping[str, Any]]
    ) -> None:
        if self._directory is None:
            return
        record = {
            "trajectory_id": trajectory.trajectory_id,
            "task_id": trajectory.task.task_id,
            "step": step,
            "time": round(time.time(), 3),
            "outcome": trajectory.outcome.to_dict() if trajectory.outcome is not None else None,
            "attribution": attribution.to_dict(),
            "exchanges": list(exchanges),
        }
        path = self._directory / f"step_{step:06d}" / f"{system_name(trajectory.trajectory_id)}.json"
        try:
            with whole(path, durable=False) as draft:
                draft.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2))
        except OSError as error:
            if not self._failed:
                logger.warning("cannot write the log of label calls to %s: %s", self._directory, error)
            self._failed = True

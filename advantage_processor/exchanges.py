"""What was asked about a trajectory and what came back, one JSON file each, under `llm_evaluation_log_dir`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from advantage_processor.labels import Attribution
from agentevolver.utils.files import whole

logger = logging.getLogger(__name__)


class ExchangeLog:
    """Writes `step_<n>/<trajectory id>.json`, whole or not at all. What cannot be written is said once and left out.

    Args:
        directory: None writes nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._failed = False

    def write(
        self, step: int, trajectory: Mapping[str, Any], attribution: Attribution, exchanges: Sequence[Mapping[str, Any]]
    ) -> None:
        """Keep the record of a trajectory that was to be labelled, be it labelled, skipped or failed."""
        if self._directory is None:
            return
        record = {
            "trajectory_id": trajectory["trajectory_id"],
            "task_id": trajectory["task"]["task_id"],
            "step": step,
            "time": round(time.time(), 3),
            "outcome": trajectory["outcome"],
            "attribution": attribution.to_dict(),
            "exchanges": list(exchanges),
        }
        path = self._directory / f"step_{step:06d}" / f"{trajectory['trajectory_id'].replace('/', '-')}.json"
        try:
            with whole(path, durable=False) as draft:
                draft.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2))
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "the records of label calls cannot be written to %s, they are left out: %s", self._directory, error
                )
            self._failed = True

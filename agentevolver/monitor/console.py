"""Progress output of a run: phase, one line per step, progress bar with the time left.

Reads `status.json` and `metrics.jsonl` of the experiment, which the trainer writes in its own process; shows nothing
that is not on disk. Without a terminal it prints the lines alone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from agentevolver.utils.files import parse

REFRESH_S = 0.5
SUCCESS = "rollout/success"
PHASES = {
    "gen": "timing_s/gen",
    "old": "timing_s/old_log_prob",
    "ref": "timing_s/ref",
    "adv": "timing_s/adv",
    "update": "timing_s/update_actor",
    "sync": "timing_s/update_weights",
}


class Console:
    """A context manager that follows an experiment's files from a thread of its own until it is left."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._console = RichConsole(file=sys.stdout)  # whatever stdout is redirected to later
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="console", daemon=True)
        self._offset = 0

    def __enter__(self) -> Console:
        metrics = self._directory / "metrics.jsonl"
        self._offset = metrics.stat().st_size if metrics.exists() else 0
        self._began = time.time()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _follow(self) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            task = progress.add_task("starting", total=None)
            phase, told = "", dict[str, str]()
            while True:
                stopping = self._stop.wait(REFRESH_S)
                status = self._status()
                if status.get("phase", phase) != phase:
                    phase = status["phase"]
                    if not self._console.is_terminal:
                        self._console.print(phase, highlight=False)
                for text in new_warnings(told, status):
                    self._console.print(f"[yellow]warning: {escape(text)}[/]", highlight=False, soft_wrap=True)
                progress.update(task, description=phase or "starting", total=status.get("total_steps"))
                for record in self._new_records():
                    self._console.print(line_of(record), highlight=False, soft_wrap=True)
                    progress.update(task, completed=record["step"])
                if stopping:
                    return

    def _status(self) -> dict[str, Any]:
        try:
            status: dict[str, Any] = json.loads((self._directory / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return status if status.get("time", 0.0) >= self._began else {}

    def _new_records(self) -> list[dict[str, Any]]:
        try:
            with (self._directory / "metrics.jsonl").open("rb") as file:
                if file.seek(0, 2) < self._offset:  # rewritten by a resumed run
                    self._offset = file.tell()
                file.seek(self._offset)
                whole, _, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._offset += len(whole) + 1 if whole else 0
        return [record for line in whole.splitlines() if (record := parse(line)) is not None and "step" in record]


def new_warnings(told: dict[str, str], status: Mapping[str, Any]) -> list[str]:
    """Return what a status warns of that is not in `told`, which keeps what each key said last; a status that could
    not be read ({}) says nothing."""
    now = {key: status[key] for key in ("stuck", "warning") if status.get(key)}
    new = [text for key, text in now.items() if told.get(key) != text]
    if status:
        told.clear()
        told.update(now)
    return new


def line_of(record: dict[str, Any]) -> str:
    """Return a step's metrics as one line of rich markup."""
    parts = [f"[bold]step {record['step']:>4}[/]"]
    if "rollout/reward/mean" in record:
        apart = [
            f"{name} {value:.3f}" for key, value in record.items() if (name := key.removeprefix(f"{SUCCESS}/")) != key
        ]
        own = f" ({', '.join(apart)})" if apart else ""
        parts.append(f"reward {record['rollout/reward/mean']:.3f}  success {record[SUCCESS]:.3f}{own}")
        parts.append(f"{record.get('rollout/tokens_per_s', 0.0):.0f} tok/s")
        times = [f"{name} {record[key]:.1f}" for name, key in PHASES.items() if key in record]
        parts.append(f"{record.get('timing_s/step', 0.0):.1f} s ({' '.join(times)})")
    if "rollout/age/mean" in record:  # where rollouts go on over updates
        parts.append(f"{record['rollout/age/mean']:.1f} steps old")
    if record.get("rollout/failed"):
        parts.append(f"[red]{record['rollout/failed']:.0f} rollouts failed[/]")
    parts.extend(
        f"[green]{short_name(key)} {value:.3f}[/]"
        for key, value in sorted(record.items())
        if key.startswith("val-core/")
    )
    return "  ".join(parts)


def short_name(key: str) -> str:
    """Return a validation metric's name without its section: `val-core/pocket/reward/mean@4` is `pocket avg@4`."""
    source, _, metric = key.removeprefix("val-core/").partition("/reward/")
    return f"{source} {metric.removesuffix('/mean').replace('mean@', 'avg@')}"

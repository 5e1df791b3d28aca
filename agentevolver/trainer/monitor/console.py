"""Progress output of a run, read from `status.json` and `metrics.jsonl`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from agentevolver.trainer.monitor.findings import MOSTLY
from agentevolver.trainer.monitor.log import read_status
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.trainer.monitor.results import (
    ValidationResult,
    measured_of,
    measured_rollouts,
    records,
    validations_of,
)
from agentevolver.utils.files import parse
from agentevolver.utils.rich_console import TerminalConsole, escape

REFRESH_S = 0.5
WIDTH = 100
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
    """A context manager that follows an experiment's files in a thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._console = TerminalConsole(file=sys.stdout)  # the terminal, also when stdout is redirected later
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="console", daemon=True)
        self._offset = 0
        self._first: dict[str, ValidationResult] = {}
        self._pace = Pace()
        self._steps = Pace()

    def __enter__(self) -> Console:
        metrics = self._directory / "metrics.jsonl"
        for record in records(self._directory):
            for one in validations_of(record):
                self._first.setdefault(one.source, one)
        self._offset = metrics.stat().st_size if metrics.exists() else 0
        self._earlier = read_status(self._directory)
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
                    self._tell_phase(phase, status)
                for text in new_lines(told, status):
                    self._console.print(f"[yellow]{escape(text)}[/]", highlight=False, soft_wrap=True)
                total, done = status.get("total_steps"), status.get("step")
                if "total" in status:  # before training: tasks that are made, experience that is gathered
                    total, done = status["total"], status.get("done", 0)
                progress.update(task, description=escape(phase) or "starting", total=total)
                if done is not None:
                    progress.update(task, completed=done)
                for record in self._new_records():
                    self._tell_step(record, status.get("total_steps"))
                    progress.update(task, completed=record["step"])
                if stopping:
                    return

    def _tell_phase(self, phase: str, status: Mapping[str, Any]) -> None:
        left = ""
        if "total" in status:
            left = self._pace.left(phase.partition(":")[0], int(status.get("done", 0)), int(status["total"]))
        if not self._console.is_terminal:
            self._console.print(f"{phase}{left}", highlight=False, markup=False, soft_wrap=True)

    def _tell_step(self, record: dict[str, Any], total: int | None) -> None:
        left = self._steps.left("step", int(record["step"]), total) if total is not None else ""
        self._console.print(line_of(record, total, left), highlight=False, soft_wrap=True)
        found = validations_of(record)
        for one in found:
            self._first.setdefault(one.source, one)
        for line in validation_lines(found, self._first, measured_of(record)):
            self._console.print(f"[green]{escape(line)}[/]", highlight=False, soft_wrap=True)

    def _status(self) -> dict[str, Any]:
        # An earlier run's status is recognised by its content, not its time: the trainer's node may have another clock.
        status = read_status(self._directory)
        return {} if status == self._earlier else status

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


def new_lines(told: dict[str, str], status: Mapping[str, Any]) -> list[str]:
    """Return the status texts that differ from those in `told`, with warnings marked, and replace `told` by the
    current ones. An unreadable status ({}) changes nothing."""
    now = {key: status[key] for key in ("stuck", "warning", "told") if status.get(key)}
    new = [text if key == "told" else f"warning: {text}" for key, text in now.items() if told.get(key) != text]
    if status:
        told.clear()
        told.update(now)
    return new


class Pace:
    """Estimates the time left from the speed since the first count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._what = ""
        self._began = (0.0, 0)

    def left(self, what: str, done: int, total: int) -> str:
        """Return `, 12 min left`, or "" before two counts are known and at the end."""
        now = self._clock()
        if what != self._what or done < self._began[1]:
            self._what, self._began = what, (now, done)
        began, first = self._began
        if not first < done < total:
            return ""
        return f", {duration((now - began) / (done - first) * (total - done))} left"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def line_of(record: Mapping[str, Any], total: int | None = None, left: str = "") -> str:
    """Return a step's metrics as one line of rich markup, at most `WIDTH` columns. Less important parts are dropped
    first."""
    step = f"step {record['step']:>4}" + (f"/{total}" if total is not None else "")
    measured = measured_rollouts(record)
    failed = f"  {measured.failed} rollouts failed" if measured.failed else ""
    failed += f"  {measured.remark()}" if measured.remark() else ""
    if (share := record.get("rollout/truncated_replies", 0.0)) > MOSTLY:
        failed += f"  {share:.0%} of replies cut"
    if measured.unmeasured:
        return f"[bold]{step}[/]  [red]success not measured:{failed}[/]{left}"
    aged = f"  {record['rollout/age/mean']:.1f} steps old" if "rollout/age/mean" in record else ""
    plain = step
    if "rollout/reward/mean" in record:
        plain += f"  reward {record['rollout/reward/mean']:.3f}  success {record[SUCCESS]:.3f}"
        room = WIDTH - len(f"{plain}{aged}{failed}{left}")
        times = {name: record[key] for name, key in PHASES.items() if key in record}
        longest = sorted(times, key=lambda name: -times[name])

        def fit(*choices: str) -> str:
            return next((one for one in choices if len(one) <= room), "")

        def phases(count: int) -> str:
            shown = (f"{name} {seconds:.1f}" for name, seconds in times.items() if name in longest[:count])
            return f" ({' '.join(shown)})" if times else ""

        seconds = record.get("timing_s/step", 0.0)
        speed = fit(f"  {record.get('rollout/tokens_per_s', 0.0):.0f} tok/s  {seconds:.1f} s", f"  {seconds:.0f} s")
        # The two longest phases come before the success of each environment.
        room -= len(speed) + len(phases(2))
        by_name = ((key.removeprefix(f"{SUCCESS}/"), value) for key, value in record.items())
        apart = [f"{name} {value:.3f}" for name, value in by_name if f"{SUCCESS}/{name}" in record and "/" not in name]
        worlds = fit(f" ({', '.join(apart)})") if apart else ""
        room += len(phases(2)) - len(worlds)
        plain += worlds + speed + fit(*(phases(count) for count in range(len(times), 0, -1))) + aged
    marked = escape(plain).replace(step, f"[bold]{step}[/]", 1)
    return marked + (f"[red]{failed}[/]" if failed else "") + left


def validation_lines(
    found: Sequence[ValidationResult],
    first: Mapping[str, ValidationResult],
    measured: Mapping[str, Measured] = MappingProxyType({}),
) -> list[str]:
    """Return a validation as a table: for each source the scores, their change since its first validation, and the
    number of rollouts that did not act or were cut."""
    unmeasured = [source for source, own in measured.items() if own.unmeasured]
    if not found and not unmeasured:
        return []
    names = [*unmeasured, *(one.source for one in found)]
    width = min(40, max(len("validation"), *map(len, names)))
    lines = [f"  {'validation':<{width}}  {'avg@n':>12}  {'best@n':>13}  since the first"]
    for one in found:
        since = first.get(one.source)
        change = (
            "" if since is None or since.step >= one.step else f"{one.average - since.average:+.3f} (step {since.step})"
        )
        best = "" if one.best is None else f"{one.best:.3f} best@{one.n}"
        source = one.source if len(one.source) <= width else f"{one.source[: width - 1]}…"
        line = f"  {source:<{width}}  {f'{one.average:.3f} avg@{one.n}':>12}  {best:>13}  {change}".rstrip()
        remark = measured[one.source].remark() if one.source in measured else ""
        lines.append(f"{line}  {remark}".rstrip())
    return [*lines, *(f"  {source:<{width}}  not measured: {measured[source].remark()}" for source in unmeasured)]

"""Results of a run, read from its folder. Missing or torn parts are left out. Imports nothing heavy."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentevolver.trainer.monitor.log import METRICS
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.utils.files import open_lines, parse, written
from agentevolver.utils.sqlite import read_only
from agentevolver.utils.statistics import Estimate, estimate, paired

_CORE = "val-core/"
_AUX = "val-aux/"
GUIDED = "guided"


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Validation of a source at a step: avg@n and best@n over its tasks."""

    step: int
    source: str
    n: int
    average: float
    best: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """First and last validation of a source.

    `before` and `after` are means over tasks, `gain` is the mean paired difference; None if the trajectories are gone.
    """

    source: str
    first: ValidationResult
    last: ValidationResult
    before: Estimate | None
    after: Estimate | None
    gain: Estimate | None


@dataclass(frozen=True, slots=True)
class Spent:
    """Use of language models; `cost` is in the currency of the configured prices."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of `metrics.jsonl`, without broken lines."""
    try:
        with (folder / METRICS).open("rb") as lines:
            yield from (record for line in lines if (record := parse(line)) is not None and "step" in record)
    except OSError:
        return


def validations_of(record: Mapping[str, Any]) -> list[ValidationResult]:
    found = []
    for key, value in sorted(record.items()):
        if not key.startswith(_CORE) or "/reward/mean@" not in key:
            continue
        source, _, n = key.removeprefix(_CORE).partition("/reward/mean@")
        if n.isdecimal():
            best = record.get(f"{_CORE}{source}/reward/best@{n}/mean")
            found.append(ValidationResult(int(record["step"]), source, int(n), float(value), best))
    return found


def measured_of(record: Mapping[str, Any]) -> dict[str, Measured]:
    """Return the counts of each source of a record's validation; {} if an older release wrote it."""
    end = "/rollouts"
    sources = [name[len(_AUX) : -len(end)] for name in record if name.startswith(_AUX) and name.endswith(end)]
    return {
        source: Measured.of_metrics(record, f"{_AUX}{source}{end}", f"{_AUX}{source}/", "failed_rollouts")
        for source in sorted(sources)
    }


def measured_rollouts(record: Mapping[str, Any]) -> Measured:
    """Return the counts of a record's training rollouts."""
    found = Measured.of_metrics(record, "rollout/trajectories", "rollout/")
    # A training rollout that never began has no grade either.
    return replace(found, failed=max(0, found.failed - found.never_began))


def validations(folder: Path, until: int | None = None) -> dict[str, list[ValidationResult]]:
    """Return a run's validations by source, ordered by step, up to step `until`."""
    found: dict[str, dict[int, ValidationResult]] = defaultdict(dict)
    for record in records(folder):
        if until is None or int(record["step"]) <= until:
            for validation in validations_of(record):
                found[validation.source][validation.step] = validation
    return {source: [steps[step] for step in sorted(steps)] for source, steps in sorted(found.items())}


def compare(folder: Path, until: int | None = None) -> list[Comparison]:
    """Return the first and the last validation of each source, which may be the same one."""
    scores: dict[int, dict[str, dict[str, float]]] = {}
    found = []
    for source, steps in validations(folder, until).items():
        first, last = steps[0], steps[-1]
        for step in (first.step, last.step):
            if step not in scores:
                scores[step] = task_scores(folder, step)
        before, after = (_of_source(scores[one.step], one) for one in (first, last))
        gain = paired(after, before) if first.step != last.step else None
        found.append(Comparison(source, first, last, estimate([*before.values()]), estimate([*after.values()]), gain))
    return found


def task_scores(folder: Path, step: int) -> dict[str, dict[str, float]]:
    """Return each task's mean score in a validation, by source: `environment/split`, with guidance `.../guided`."""
    path = written(folder / "validation" / f"step_{step}.jsonl")
    sums: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    if path is None:
        return {}
    try:
        with open_lines(path) as lines:
            for line in lines:
                record = parse(line)
                outcome = record.get("outcome") if record is not None else None
                if record is not None and outcome is not None:
                    task = record["task"]
                    source = f"{task['env_type']}/{(task.get('metadata') or {}).get('split')}"
                    source += f"/{GUIDED}" if record.get("guidance_wanted") else ""
                    sums[source][str(task["task_id"])].append(float(outcome["score"]))
    except (OSError, EOFError, KeyError, TypeError, ValueError):
        return {}
    return {source: {task: sum(own) / len(own) for task, own in by_task.items()} for source, by_task in sums.items()}


def figure(average: float, interval: Estimate | None) -> str:
    # For example `0.375 [0.004, 0.746]`.
    ends = None if interval is None else interval.within(0, 1)
    return f"{average:.3f}" + ("" if ends is None else f" [{ends[0]:.3f}, {ends[1]:.3f}]")


def _of_source(by_source: Mapping[str, Mapping[str, float]], validation: ValidationResult) -> dict[str, float]:
    # Metrics leave the split out if there is only one: their source `ENV` is `ENV/dev` in the trajectories.
    name, guided = validation.source, False
    if name == GUIDED or name.endswith(f"/{GUIDED}"):
        name, guided = name.removesuffix(GUIDED).rstrip("/"), True
    matching = {
        source: tasks
        for source, tasks in by_source.items()
        if source.endswith(f"/{GUIDED}") is guided
        and ((own := source.removesuffix(f"/{GUIDED}")) == name or own.partition("/")[0] == name)
    }
    if len(matching) != 1:
        return {}
    (tasks,) = matching.values()
    # The scores count only if their mean is the metric's value, so that the tasks are the same.
    close = tasks and abs(sum(tasks.values()) / len(tasks) - validation.average) < 1e-6
    return dict(tasks) if close else {}


def spent(ledger: Path) -> Spent | None:
    """Return the sums of a usage ledger, or None if it is missing or empty."""
    if not ledger.is_file():
        return None
    try:
        with closing(sqlite3.connect(read_only(ledger), uri=True, timeout=5)) as opened:
            row = opened.execute(
                "SELECT sum(calls), sum(prompt_tokens), sum(completion_tokens), sum(cost) FROM usage"
            ).fetchone()
    except sqlite3.Error:
        return None
    return None if row[0] is None else Spent(int(row[0]), int(row[1]), int(row[2]), float(row[3]))

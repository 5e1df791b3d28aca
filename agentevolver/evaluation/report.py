"""Report of an evaluation: avg@k, unbiased pass@k and their 95 % intervals, beside other evaluations.

Intervals are Student's, over the means of the tasks. Evaluations of the same tasks are compared in pairs. An evaluation
whose policy never acted has no figures and is not compared.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.table import Table

from agentevolver.evaluation.play import PlayedEpisode
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.utils.errors import UsageError
from agentevolver.utils.rich_console import escape
from agentevolver.utils.statistics import Estimate, best_at_k, estimate, paired, sizes_of_k

SCHEMA = 1
DIGITS = 3
UNMEASURED = "not measured"


@dataclass(frozen=True)
class Evaluation:
    """Scores, successes and steps of each task's episodes. Failed episodes are only counted, by reason."""

    name: str
    env_type: str
    split: str
    n: int
    scores: Mapping[str, Sequence[float]]
    successes: Mapping[str, Sequence[bool]]
    steps: Mapping[str, Sequence[int]]
    failed: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    measured: Measured = field(default_factory=Measured)

    @classmethod
    def of(
        cls, name: str, env_type: str, split: str, n: int, episodes: Sequence[PlayedEpisode], facts: Mapping[str, Any]
    ) -> Self:
        scores: dict[str, list[float]] = defaultdict(list)
        successes: dict[str, list[bool]] = defaultdict(list)
        steps: dict[str, list[int]] = defaultdict(list)
        measured = sum((episode.measured for episode in episodes), Measured())
        for episode in () if measured.unmeasured else episodes:
            if episode.score is not None:
                scores[episode.task_id].append(episode.score)
                successes[episode.task_id].append(episode.success)
                steps[episode.task_id].append(episode.steps)
        failed = Counter(episode.stop_reason for episode in episodes if episode.score is None)
        own = dict(scores), dict(successes), dict(steps), dict(failed), dict(facts)
        return cls(name, env_type, split, n, *own, measured)

    @property
    def where(self) -> str:
        return f"{self.env_type}/{self.split}"

    def average(self) -> dict[str, float]:
        """Return each task's success rate."""
        return {task: sum(own) / len(own) for task, own in self.successes.items()}

    def names(self) -> list[str]:
        chances = [f"pass@{k}" for k in sizes_of_k(self.n) if k > 1]
        return [f"success avg@{self.n}", *chances, f"reward avg@{self.n}", "steps an episode"]

    def measures(self) -> dict[str, Estimate]:
        found = {f"success avg@{self.n}": estimate([*self.average().values()])}
        for k in sizes_of_k(self.n):
            if k > 1:
                # pass@k needs k graded episodes; a task with fewer is left out.
                own = [best_at_k([float(s) for s in each], k) for each in self.successes.values() if len(each) >= k]
                found[f"pass@{k}"] = estimate(own)
        found[f"reward avg@{self.n}"] = estimate([sum(own) / len(own) for own in self.scores.values()])
        found["steps an episode"] = estimate([sum(own) / len(own) for own in self.steps.values()])
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, including the estimates."""
        # A figure that was not measured is null, never 0.
        figures: dict[str, Any] = dict.fromkeys(self.names())
        for name, value in self.measures().items():
            ends = value.within(*_bounds(name))
            # The interval is cut to the possible range, [0, 1] for a rate.
            figures[name] = {**value.to_dict(), "interval_95": None if ends is None else list(ends)}
        return {
            "schema": SCHEMA,
            "name": self.name,
            "environment": self.env_type,
            "split": self.split,
            "n": self.n,
            "figures": figures,
            "counts": self.measured.counts(),
            "failed": dict(self.failed),
            **self.facts,
            "tasks": {
                task: {"scores": list(self.scores[task]), "successes": list(own), "steps": list(self.steps[task])}
                for task, own in self.successes.items()
            },
        }


def read_evaluation(path: Path) -> Evaluation:
    """Read a file written from `to_dict`. Raises UsageError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if int(data["schema"]) > SCHEMA:
            raise UsageError(
                f"{path} was written by a newer release (schema {data['schema']}, this one reads {SCHEMA})"
            )
        tasks = data["tasks"]
        return Evaluation(
            str(data["name"]),
            str(data["environment"]),
            str(data["split"]),
            int(data["n"]),
            {task: [float(score) for score in own["scores"]] for task, own in tasks.items()},
            {task: [bool(success) for success in own["successes"]] for task, own in tasks.items()},
            {task: [int(steps) for steps in own["steps"]] for task, own in tasks.items()},
            data.get("failed") or {},
            measured=Measured(**(data.get("counts") or {})),
        )
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no evaluation (what `agentevolver eval --out` writes): {error!r}") from error


def table(evaluations: Sequence[Evaluation]) -> Table:
    """Return evaluations side by side. The last row is each one's difference to the first."""
    first = evaluations[0]
    made = Table(title=escape(first.where), title_justify="left")
    made.add_column("")
    for one in evaluations:
        name = one.name if one.where == first.where else f"{one.name} ({one.where})"
        made.add_column(escape(name), overflow="fold")
    measured = [one.measures() for one in evaluations]
    for name in dict.fromkeys(name for one in evaluations for name in one.names()):
        made.add_row(escape(name), *(UNMEASURED if not own else _cell(name, own.get(name)) for own in measured))
    counts = [f"{len(one.scores)} x {one.n}" for one in evaluations]
    made.add_row("tasks x episodes", *counts)
    rows = {
        "failed, not counted": [sum(one.failed.values()) for one in evaluations],
        "never began": [one.measured.never_began for one in evaluations],
        "never acted": [one.measured.never_acted for one in evaluations],
        "cut by the context limit": [one.measured.cut for one in evaluations],
        "cut replies": [one.measured.cut_replies for one in evaluations],
    }
    for what, own in rows.items():
        if any(own):
            made.add_row(what, *map(str, own))
    if len(evaluations) > 1:
        made.add_row("success minus the first", "", *(_difference(one, first) for one in evaluations[1:]))
    return made


def _cell(name: str, value: Estimate | None) -> str:
    if value is None:
        return ""
    ends = value.within(*_bounds(name))
    return f"{value.mean:.{DIGITS}f}" + ("" if ends is None else f" [{ends[0]:.{DIGITS}f}, {ends[1]:.{DIGITS}f}]")


def _bounds(name: str) -> tuple[float, float]:
    return (0.0, float("inf")) if name.startswith("steps") else (0.0, 1.0)


def _difference(one: Evaluation, first: Evaluation) -> str:
    if not (one.scores and first.scores):
        return UNMEASURED
    if one.where != first.where:
        return "another split"
    found = paired(one.average(), first.average())
    return "no task in common" if found is None else f"{found.shown('+')} ({found.n} tasks)"

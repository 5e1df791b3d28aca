"""Results of a table of experiments, from its finished runs and a csv.

Differences are paired by seed, with Student's 95 % interval. Learning speed follows AgentEvolver (arXiv 2511.10395,
table 6): the first step at which the mean over seeds reaches 90 % of the baseline's best, and the area under the curve.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean

from agentevolver.evaluation.tables import Cell, TablePlan
from agentevolver.trainer.monitor.findings import unmeasured_sources
from agentevolver.trainer.monitor.results import GUIDED, validations
from agentevolver.utils.errors import UsageError
from agentevolver.utils.statistics import Estimate, estimate, paired

COLUMNS = ("phase", "split", "condition", "seed", "step", "reward")
TRAINING, EVALUATION = "training", "evaluation"
SHARE = 0.9

Figures = dict[str, dict[str, dict[int, float]]]
"""By split, condition and seed."""
Curves = dict[str, dict[str, dict[int, dict[int, float]]]]
"""By split, condition, seed and step."""
Row = tuple[str, str, str, int, int, float]
"""The values of `COLUMNS`."""


@dataclass(frozen=True, slots=True)
class Results:
    """Mean rewards by step: validations of trainings, and evaluations."""

    training: Curves = field(default_factory=dict)
    evaluation: Curves = field(default_factory=dict)
    unmeasured: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    """Seeds of runs whose last validation measured nothing, by split and condition. They have no end."""

    def add(self, phase: str, split: str, condition: str, seed: int, step: int, reward: float) -> None:
        """Add a reward, or replace that of the same step. Raises KeyError if the phase is unknown."""
        curves = {TRAINING: self.training, EVALUATION: self.evaluation}[phase]
        curves.setdefault(split, {}).setdefault(condition, {}).setdefault(seed, {})[step] = reward

    def rows(self) -> Iterator[Row]:
        """Yield the arguments of `add` for each reward."""
        for phase, curves in ((TRAINING, self.training), (EVALUATION, self.evaluation)):
            for split, by_condition in curves.items():
                for condition, by_seed in by_condition.items():
                    for seed, curve in sorted(by_seed.items()):
                        for step, reward in sorted(curve.items()):
                            yield phase, split, condition, seed, step, reward

    def ends(self, evaluated: bool) -> Figures:
        """Return the last reward of each run's evaluation, or of its validations during training."""
        ends: Figures = {}
        for split, conditions in self._of(evaluated).items():
            for name, by_seed in conditions.items():
                left_out = self.unmeasured.get(split, {}).get(name, set())
                own = {seed: curve[max(curve)] for seed, curve in by_seed.items() if seed not in left_out}
                if own:
                    ends.setdefault(split, {})[name] = own
        return ends

    def has(self, cell: Cell, evaluated: bool) -> bool:
        return any(cell.seed in by.get(cell.condition, {}) for by in self._of(evaluated).values())

    def _of(self, evaluated: bool) -> Curves:
        return self.evaluation if evaluated else self.training


def gather(plan: TablePlan, known: Results | None = None) -> Results:
    """Return the results of finished cells in the plan's folder. `known` fills in the other cells."""
    evaluated = plan.table.evaluation is not None
    found = Results()
    elsewhere: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in known.rows() if known is not None else ():
        elsewhere[row[2], row[3]].append(row)
    for cell in plan.cells():
        end = f"{cell.name}-eval" if evaluated else cell.name
        # A run that goes on would give a table of half-trained policies, so only finished cells are read.
        if plan.finished(end).exists():
            for split in unmeasured_sources(plan.folder / end):
                found.unmeasured.setdefault(split, {}).setdefault(cell.condition, set()).add(cell.seed)
            for phase, name in ((TRAINING, cell.name), (EVALUATION, f"{cell.name}-eval")):
                for split, steps in validations(plan.folder / name).items():
                    for one in steps:
                        found.add(phase, split, cell.condition, cell.seed, one.step, one.average)
        else:
            for row in elsewhere[cell.condition, cell.seed]:
                found.add(*row)
    return found


def differences(found: Figures, baseline: str) -> dict[str, dict[str, Estimate]]:
    """Return each condition minus the baseline, paired by seed."""
    made: dict[str, dict[str, Estimate]] = {}
    for source, by_condition in found.items():
        without = found.get(source.removesuffix(GUIDED).rstrip("/"), {})
        # With experience, a condition is compared with the baseline with experience, or else with the plain baseline.
        against = by_condition.get(baseline) or without.get(baseline) or {}
        for condition, by_seed in by_condition.items():
            pair = paired(by_seed, against)
            if condition != baseline and pair is not None:
                made.setdefault(source, {})[condition] = pair
    return made


def markdown(plan: TablePlan, results: Results) -> str:
    """Return the table as markdown: means with 95 % intervals, paired differences, and learning speed."""
    found = results.ends(plan.table.evaluation is not None)
    sources = list(dict.fromkeys([*found, *results.unmeasured]))
    known = {name for by in found.values() for name in by}
    known |= {name for by in results.unmeasured.values() for name in by}
    conditions = [name for name in plan.conditions if name in known]
    baseline = plan.table.compared_with
    counts = {name: max(len(by.get(name, {})) for by in found.values()) for name in conditions}
    lines = [
        f"| reward (seeds) | {' | '.join(f'{name} ({counts[name]})' for name in conditions)} |",
        "|---" * (len(conditions) + 1) + "|",
    ]
    for source in sources:
        cells = []
        for name in conditions:
            one, lost = estimate([*found.get(source, {}).get(name, {}).values()]), results.unmeasured.get(source, {})
            note = f"not measured: {len(lost[name])}" if name in lost else ""
            cells.append(" ".join(filter(None, ("" if one is None else one.shown(), note))))
        lines.append(f"| {source} | {' | '.join(cells)} |")
    others, pairs = [name for name in conditions if name != baseline], differences(found, baseline)
    if others and pairs:
        lines += ["", f"| minus {baseline}, seed by seed | {' | '.join(others)} |", "|---" * (len(others) + 1) + "|"]
        for source, by_name in pairs.items():
            shown = (by_name[name].shown("+") if name in by_name else "" for name in others)
            lines.append(f"| {source} | {' | '.join(shown)} |")
    return "\n".join([*lines, *_speed(results.training, baseline)]) + "\n"


def _speed(curves: Curves, baseline: str) -> list[str]:
    lines: list[str] = []
    for split, by_condition in curves.items():
        reference = mean_curve(by_condition.get(baseline, {}).values())
        if len(reference) < 2:
            continue
        target = SHARE * max(reference.values())
        areas = {name: {seed: area(one) for seed, one in by.items()} for name, by in by_condition.items()}
        lines += [
            "",
            f"| {split}, while training | steps to {target:.3f} ({SHARE:.0%} of {baseline}'s best) | mean reward over "
            f"the steps | minus {baseline} |",
            "|---|---|---|---|",
        ]
        for name, by_seed in by_condition.items():
            reached = next((step for step, one in mean_curve(by_seed.values()).items() if one >= target), None)
            own, pair = estimate([*areas[name].values()]), paired(areas[name], areas[baseline])
            less = "" if name == baseline or pair is None else pair.shown("+")
            lines.append(
                f"| {name} | {'not reached' if reached is None else reached} | {own.shown() if own else ''} | {less} |"
            )
    return lines


def mean_curve(curves: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean of curves at the steps that all of them have."""
    found = list(curves)
    shared = sorted(set.intersection(*map(set, found))) if found else []
    return {step: mean(curve[step] for curve in found) for step in shared}


def area(curve: Mapping[int, float]) -> float:
    """Return the mean of a curve over its steps by the trapezoid rule."""
    steps = sorted(curve)
    if len(steps) == 1:
        return curve[steps[0]]
    parts = ((b - a) * (curve[a] + curve[b]) / 2 for a, b in pairwise(steps))
    return sum(parts) / (steps[-1] - steps[0])


def write_csv(results: Results, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([*place, f"{reward:.6f}"] for *place, reward in results.rows())


def read_csv(path: Path) -> Results:
    """Read a file written by `write_csv`. Raises UsageError."""
    results = Results()
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise UsageError(f"{path} is no csv of a table: its first line must be {','.join(COLUMNS)}")
            for row in reader:
                try:
                    numbers = int(row["seed"]), int(row["step"]), float(row["reward"])
                    results.add(row["phase"], row["split"], row["condition"], *numbers)
                except (KeyError, TypeError, ValueError) as error:
                    raise UsageError(f"{path}, line {reader.line_num}: {error!r}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error.reason}") from error
    return results

"""Tables of runs of proposer and executor, from what `examples/agent0_tables.sh` left.

Run `python -m benchmarks.agent0_tables --experiments experiments/agent0`. An experiment is called
CONDITION-SEED. Success is that of the validation's first split after each round, 0 the base. Given are means over the
seeds and half the width of their 95 % interval (Student's t); with one seed that of the evaluation's tasks, in
brackets, which says nothing of other seeds, and nothing for what is no success. Differences are taken seed by seed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from agentevolver.utils.statistics import half_width

# A condition, and the one that it is compared with.
PAIRS = (
    *(("executed", "frozen"), ("executed", "equal_updates"), ("executed", "vote"), ("executed", "no_tool")),
    *(("executed", "no_adpo"), ("narrow", "narrow_frozen")),
    *(("narrow_malformed", "narrow_frozen"), ("narrow_steps", "narrow_frozen")),
)
# Half the width of a normal distribution's 95 % interval, in standard errors.
NORMAL = 1.96
Round = Mapping[str, Any]
Value = Callable[[Round], float | None]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=Path, required=True, help="folder of the experiments")
    runs = read_runs(parser.parse_args(argv).experiments)
    print(table("success", runs, success, success_error), end="\n\n")
    print(differences(runs), end="\n\n")
    for title, value in (
        ("labels that are right, of the tasks that were kept", label_metric("label_right")),
        ("tasks that were kept", label_count("kept")),
        ("tool calls of the executor on proposals, before its training", label_metric("measured/calls")),
        ("executor rollouts for proposing and labelling", episodes),
    ):
        print(table(title, runs, value), end="\n\n")


def read_runs(folder: Path) -> dict[str, dict[str, list[Round]]]:
    """Return the rounds of every run that has a manifest, by condition and seed."""
    found: dict[str, dict[str, list[Round]]] = defaultdict(dict)
    for manifest in sorted(folder.glob("*-*/coevolve.json")):
        condition, _, seed = manifest.parent.name.rpartition("-")
        found[condition][seed] = json.loads(manifest.read_text(encoding="utf-8"))["rounds"]
    return dict(found)


def table(
    title: str, runs: Mapping[str, Mapping[str, Sequence[Round]]], value: Value, error: Value = lambda part: None
) -> str:
    """Return a markdown table: a row a condition, a column a round.

    `error` is the standard error of one run's value, for what there is one seed of.
    """
    lines = []
    for name, by_seed in runs.items():
        columns = [[rounds[i] for rounds in by_seed.values() if i < len(rounds)] for i in range(_longest(runs))]
        cells = [cell([value(part) for part in parts], [error(part) for part in parts]) for parts in columns]
        lines.append(f"| {name} | {len(by_seed)} | {' | '.join(cells)} |")
    return "\n".join([*_head(title, _longest(runs)), *lines])


def differences(runs: Mapping[str, Mapping[str, Sequence[Round]]]) -> str:
    """Return a markdown table of the differences in success of `PAIRS`, by the seeds that both have."""
    lines = []
    for name, other in PAIRS:
        seeds = sorted(set(runs.get(name, {})) & set(runs.get(other, {})))
        cells = []
        for i in range(_longest(runs)):
            pairs = [(runs[name][seed], runs[other][seed]) for seed in seeds]
            there = [(ours[i], theirs[i]) for ours, theirs in pairs if i < min(len(ours), len(theirs))]
            found = [_difference(*pair) for pair in there]
            cells.append(cell([value for value, _ in found], [error for _, error in found], "+"))
        if seeds:
            lines.append(f"| {name} - {other} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join([*_head("difference in success", _longest(runs)), *lines])


def cell(values: Sequence[float | None], errors: Sequence[float | None] = (), sign: str = "") -> str:
    """Return the mean of what is known, with half its interval's width; `errors` are the values' standard errors."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    form = f"{sign}.3f" if max(map(abs, known)) <= 1 else f"{sign},.1f"
    if (width := half_width(known)) is not None:
        return f"{mean(known):{form}} ± {width:{form.lstrip('+')}}"
    error = next((error for error in errors if error is not None), None)
    return f"{mean(known):{form}}" + ("" if error is None else f" (± {NORMAL * error:.3f})")


def _head(title: str, width: int) -> list[str]:
    return [f"| {title} | seeds | {' | '.join(map(str, range(width)))} |", "|---" * (width + 2) + "|"]


def _longest(runs: Mapping[str, Mapping[str, Sequence[Round]]]) -> int:
    return max((len(rounds) for by_seed in runs.values() for rounds in by_seed.values()), default=0)


def _difference(ours: Round, theirs: Round) -> tuple[float | None, float | None]:
    """Return the difference in success of two rounds, and its standard error as if their tasks were not the same."""
    values, errors = (success(ours), success(theirs)), (success_error(ours), success_error(theirs))
    known = [value for value in values if value is not None]
    of_tasks = [error for error in errors if error is not None]
    return (
        known[0] - known[1] if len(known) == 2 else None,
        math.hypot(*of_tasks) if len(of_tasks) == 2 else None,
    )


def success(part: Round) -> float | None:
    """Return the success on the first split."""
    return _of_success(part, "mean")


def success_error(part: Round) -> float | None:
    """Return its standard error over the tasks."""
    return _of_success(part, "se")


def _of_success(part: Round, name: str) -> float | None:
    found = part["stages"].get("evaluate", {}).get("metrics") or {}
    return next((float(split["success"][name]) for split in found.values()), None)


def episodes(part: Round) -> float | None:
    """Return the executor's episodes by which proposals were rewarded and labelled."""
    counts = [part["stages"].get(name, {}).get("counts", {}).get("episodes") for name in ("propose", "label")]
    known = [float(count) for count in counts if count is not None]
    return sum(known) if known else None


def label_metric(name: str) -> Value:
    """Return what reads a metric of the stage label."""
    return lambda part: part["stages"].get("label", {}).get("metrics", {}).get(name)


def label_count(name: str) -> Value:
    """Return what reads a count of the stage label."""
    return lambda part: part["stages"].get("label", {}).get("counts", {}).get(name)


if __name__ == "__main__":
    main()

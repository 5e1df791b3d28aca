"""Tables of runs of proposer and executor, from what `examples/agent0_tables.sh` left.

`python benchmarks/agent0_tables.py --experiments experiments/agent0`. An experiment is called CONDITION-SEED. Success
is that of the validation's first split after each round, 0 the base; means are over the seeds, with their standard
deviation where there are two or more.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

Round = Mapping[str, Any]
Value = Callable[[Round], float | None]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=Path, required=True, help="folder of the experiments")
    runs = read_runs(parser.parse_args(argv).experiments)
    for title, value in (
        ("success", success),
        ("labels that are right, of the tasks that were kept", label_metric("label_right")),
        ("tasks that were kept", label_count("kept")),
        ("tool calls of the executor on proposals, before its training", label_metric("measured/calls")),
        ("executor rollouts for proposing and labelling", episodes),
    ):
        print(table(title, runs, value), end="\n\n")


def read_runs(folder: Path) -> dict[str, list[list[Round]]]:
    """Return the rounds of every run that has a manifest, by condition."""
    found: dict[str, list[list[Round]]] = defaultdict(list)
    for manifest in sorted(folder.glob("*/coevolve.json")):
        rounds = json.loads(manifest.read_text(encoding="utf-8"))["rounds"]
        found[manifest.parent.name.rpartition("-")[0]].append(rounds)
    return dict(found)


def table(title: str, runs: Mapping[str, Sequence[Sequence[Round]]], value: Value) -> str:
    """Return a markdown table: a row a condition, a column a round."""
    width = max((len(rounds) for own in runs.values() for rounds in own), default=0)
    lines = [f"| {title} | seeds | {' | '.join(map(str, range(width)))} |", "|---" * (width + 2) + "|"]
    for name, own in runs.items():
        cells = [cell([value(rounds[i]) for rounds in own if i < len(rounds)]) for i in range(width)]
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: Sequence[float | None]) -> str:
    """Return the mean of what is known, with the deviation of several."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    shown = "{:.3f}".format if max(known) <= 1 else "{:,.1f}".format
    return shown(mean(known)) + (f" ± {shown(stdev(known))}" if len(known) > 1 else "")


def success(part: Round) -> float | None:
    """Return the success on the first split."""
    found = part["stages"].get("evaluate", {}).get("metrics") or {}
    return next((float(split["success"]["mean"]) for split in found.values()), None)


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

"""Learning curves of finished runs: one CSV, one PNG, one table.

    python benchmarks/learning_curves.py --out docs/img/basic NAME=experiments/pocket/basic-1,experiments/pocket/basic-2
    [NAME=…]

Each NAME is a condition, its folders are its seeds. Reads `metrics.jsonl` alone. The CSV has one line per condition,
seed and step; the picture shows validation (every seed thin, their mean thick) and the training reward as a moving
average over nine steps; the table has the first and the last validation of each seed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from agentevolver.evaluation.table_results import mean_curve
from agentevolver.utils.files import read_jsonl

Curve = dict[int, float]
WINDOW = 9


def read_run(folder: Path, metric: str) -> tuple[Curve, Curve]:
    """Return validation and training reward by step."""
    records = read_jsonl(folder / "metrics.jsonl")
    validation = {r["step"]: r[metric] for r in records if metric in r}
    training = {r["step"]: r["rollout/reward/mean"] for r in records if "rollout/reward/mean" in r}
    return validation, training


def pick_metric(folder: Path) -> str:
    names = [
        key
        for record in read_jsonl(folder / "metrics.jsonl")
        for key in record
        if key.startswith("val-core/") and "/mean@" in key
    ]
    if not names:
        sys.exit(f"{folder}/metrics.jsonl has no validation")
    return sorted(names)[0]


def moving_average(curve: Curve) -> Curve:
    steps = sorted(curve)
    half = WINDOW // 2
    return {s: mean(curve[n] for n in steps[max(0, i - half) : i + half + 1]) for i, s in enumerate(steps)}


def plot(conditions: dict[str, list[tuple[Curve, Curve]]], metric: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for colour, (name, seeds) in enumerate(conditions.items()):
        for side, (axis, smooth) in enumerate(zip(axes, (dict, moving_average), strict=True)):
            curves = [smooth(seed[side]) for seed in seeds]
            for curve in curves:
                axis.plot(list(curve), list(curve.values()), color=f"C{colour}", alpha=0.3, linewidth=1)
            shared = mean_curve(curves)
            label = f"{name} ({len(seeds)} seeds)" if len(seeds) > 1 else name
            axis.plot(list(shared), list(shared.values()), color=f"C{colour}", linewidth=2, label=label)
    axes[0].set(title=metric.removeprefix("val-core/"), xlabel="step", ylim=(0, 1))
    axes[1].set(title="training reward", xlabel="step")
    for axis in axes:
        axis.grid(alpha=0.3)
    axes[0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="path of CSV and PNG without suffix")
    parser.add_argument("--metric", help="a key of metrics.jsonl; the default is the validation's average")
    parser.add_argument("conditions", nargs="+", metavar="NAME=FOLDER[,FOLDER…]")
    arguments = parser.parse_args()
    folders = {
        name: [Path(f) for f in value.split(",")] for name, _, value in (c.partition("=") for c in arguments.conditions)
    }
    metric = arguments.metric or pick_metric(next(iter(folders.values()))[0])
    conditions = {name: [read_run(folder, metric) for folder in group] for name, group in folders.items()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["condition", "seed", "step", "validation", "training_reward"])
        for name, seeds in conditions.items():
            for seed, (validation, training) in enumerate(seeds, 1):
                values: dict[int, list[str]] = defaultdict(lambda: ["", ""])
                for column, curve in enumerate((validation, training)):
                    for step, value in curve.items():
                        values[step][column] = f"{value:.4f}"
                writer.writerows([name, seed, step, *values[step]] for step in sorted(values))
    plot(conditions, metric, arguments.out.with_suffix(".png"))
    table = Table("condition", "seed", "before", "after", "gain", title=metric)
    for name, seeds in conditions.items():
        ends = [(curve[min(curve)], curve[max(curve)]) for curve, _ in seeds]
        for seed, (first, last) in enumerate(ends, 1):
            table.add_row(name, str(seed), f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}")
        first, last = (mean(end[i] for end in ends) for i in range(2))
        table.add_row(name, "mean", f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}", end_section=True)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Figures of a table of experiments, from the csv that `agentevolver table` writes.

    python -m benchmarks.table_figures docs/tables/paper.csv [--out PATH.svg] [--conditions grpo,q,overall]

One picture: the reward of each condition on each split that was evaluated (a dot a seed, the mean with Student's 95 %
interval), and the curve of each training's validations (the mean over the seeds, and their range).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentevolver.evaluation.table_results import Curves, Figures, mean_curve, read_csv
from agentevolver.utils.statistics import estimate


def main(argv: Sequence[str] | None = None) -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--out", type=Path, help="picture, svg or png by its suffix (default: beside the csv, svg)")
    parser.add_argument("--conditions", help="names with commas between; all unless given, in the csv's order")
    options = parser.parse_args(argv)
    results = read_csv(options.csv)
    ends = results.ends(evaluated=bool(results.evaluation))
    there = list(dict.fromkeys(name for curves in (results.training, ends) for by in curves.values() for name in by))
    chosen = options.conditions.split(",") if options.conditions else there
    if missing := sorted(set(chosen) - set(there)):
        parser.error(f"{options.csv} has no condition {missing[0]!r}, but {', '.join(there)}")
    draw(ends, results.training, chosen, options.out or options.csv.with_suffix(".svg"))


def draw(ends: Figures, curves: Curves, conditions: Sequence[str], path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = len(ends) + len(curves)
    figure, axes = pyplot.subplots(
        1, panels, figsize=(1.6 + 0.45 * len(conditions) * len(ends) + 4.2 * len(curves), 4), squeeze=False,
        width_ratios=[max(1.8, 0.45 * len(conditions))] * len(ends) + [4.2] * len(curves),
    )  # fmt: skip
    for axis, (split, by_condition) in zip(axes[0], ends.items(), strict=False):
        _dots(axis, split, by_condition, conditions)
    for axis, (split, by_curve) in zip(axes[0][len(ends) :], curves.items(), strict=True):
        _lines(axis, split, by_curve, conditions)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _dots(axis: Any, split: str, by_condition: dict[str, dict[int, float]], conditions: Sequence[str]) -> None:
    for place, name in enumerate(conditions):
        values = [*by_condition.get(name, {}).values()]
        whole = estimate(values)
        if whole is not None:
            axis.scatter([place] * len(values), values, color=f"C{place % 10}", s=12, alpha=0.4)
            axis.errorbar(place, whole.mean, yerr=whole.half or 0, fmt="o", color=f"C{place % 10}", capsize=4)
    axis.set(title=split, ylabel="reward", xlim=(-0.6, len(conditions) - 0.4))
    axis.set_xticks(range(len(conditions)), conditions, rotation=60, ha="right", fontsize=8)
    axis.grid(alpha=0.3, axis="y")


def _lines(
    axis: Any, split: str, by_condition: dict[str, dict[int, dict[int, float]]], conditions: Sequence[str]
) -> None:
    for place, name in enumerate(conditions):
        runs = [*by_condition.get(name, {}).values()]
        if not runs:
            continue
        curve = mean_curve(runs)
        label = f"{name} ({len(runs)})"
        axis.plot(list(curve), list(curve.values()), color=f"C{place % 10}", linewidth=2, label=label)
        low, high = ([pick(run[step] for run in runs) for step in curve] for pick in (min, max))
        axis.fill_between(list(curve), low, high, color=f"C{place % 10}", alpha=0.12, linewidth=0)
    axis.set(title=f"{split}, while training", xlabel="step")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


if __name__ == "__main__":
    main()

"""Figures of a table of experiments, from the csv that `agentevolver table` writes.

    python -m benchmarks.table_figures docs/tables/paper.csv [--out PATH.svg] [--conditions grpo,q,overall]

One picture: the reward of each condition on each split that was evaluated (a dot a seed, the mean with Student's 95 %
interval from three seeds on), and the curve of each training's validations (the mean over the seeds, and their range).
What was measured with experience stands in the same panel, hollow and dashed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentevolver.evaluation.table_results import Curves, Figures, mean_curve, read_csv
from agentevolver.trainer.monitor.results import GUIDED
from agentevolver.utils.statistics import estimate

WITH_EXPERIENCE = f"/{GUIDED}"


def main(argv: Sequence[str] | None = None) -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--out", type=Path, help="picture, svg or png by its suffix (default: beside the csv, svg)")
    parser.add_argument("--conditions", help="names with commas between; all unless given, in the csv's order")
    options = parser.parse_args(argv)
    results = read_csv(options.csv)
    ends = results.ends(evaluated=bool(results.evaluation))
    there = list(dict.fromkeys(name for curves in (ends, results.training) for by in curves.values() for name in by))
    chosen = options.conditions.split(",") if options.conditions else there
    if missing := sorted(set(chosen) - set(there)):
        parser.error(f"{options.csv} has no condition {missing[0]!r}, but {', '.join(there)}")
    draw(ends, results.training, chosen, options.out or options.csv.with_suffix(".svg"))


def draw(ends: Figures, curves: Curves, conditions: Sequence[str], path: Path) -> None:
    """Write the picture: an SVG has the same bytes whenever and wherever it is drawn by one version of matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "table"
    from matplotlib import pyplot

    dots, lines = _splits(ends), _splits(curves)
    wide = max(1.8, 0.45 * len(conditions))
    figure, axes = pyplot.subplots(
        1, len(dots) + len(lines), figsize=(1.6 + wide * len(dots) + 6.4 * len(lines), 4), squeeze=False,
        width_ratios=[wide] * len(dots) + [6.4] * len(lines),
    )  # fmt: skip
    for axis, split in zip(axes[0], dots, strict=False):
        _dots(axis, ends.get(split, {}), conditions, guided=False)
        _dots(axis, ends.get(split + WITH_EXPERIENCE, {}), conditions, guided=True)
        axis.set(title=split, ylabel="reward", xlim=(-0.6, len(conditions) - 0.4))
        axis.set_xticks(range(len(conditions)), conditions, rotation=60, ha="right", fontsize=8)
        axis.grid(alpha=0.3, axis="y")
    for axis, split in zip(axes[0][len(dots) :], lines, strict=True):
        _lines(axis, curves.get(split, {}), conditions, guided=False)
        _lines(axis, curves.get(split + WITH_EXPERIENCE, {}), conditions, guided=True)
        axis.set(title=f"{split}, while training", xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Date": None})


def _splits(measured: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.removesuffix(WITH_EXPERIENCE) for name in measured))


def _dots(axis: Any, by_condition: Mapping[str, dict[int, float]], conditions: Sequence[str], *, guided: bool) -> None:
    for number, name in enumerate(conditions):
        values, place, color = [*by_condition.get(name, {}).values()], number + 0.3 * guided, f"C{number % 10}"
        whole = estimate(values)
        if whole is not None:
            axis.scatter([place] * len(values), values, color=color, s=12, alpha=0.4)
            style = {"color": color, "capsize": 4, "mfc": "white" if guided else None}
            axis.errorbar(place, whole.mean, yerr=(whole.half or 0) if len(values) > 2 else 0, fmt="o", **style)


def _lines(
    axis: Any, by_condition: Mapping[str, dict[int, dict[int, float]]], conditions: Sequence[str], *, guided: bool
) -> None:
    for number, name in enumerate(conditions):
        runs = [*by_condition.get(name, {}).values()]
        if not runs:
            continue
        curve, color = mean_curve(runs), f"C{number % 10}"
        label = f"{name} ({len(runs)}{', with experience' if guided else ''})"
        axis.plot(list(curve), list(curve.values()), "--" if guided else "-", color=color, linewidth=2, label=label)
        low, high = ([pick(run[step] for run in runs) for step in curve] for pick in (min, max))
        axis.fill_between(list(curve), low, high, color=color, alpha=0.12, linewidth=0)


if __name__ == "__main__":
    main()

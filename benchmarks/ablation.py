"""What each part adds, from the runs of `examples/ablation.sh`: two tables, one CSV, one figure.

    python benchmarks/ablation.py --experiments experiments/ablation --out docs/img/ablation

Reads `metrics.jsonl` of the folders CONDITION-SEED (training, validated on dev as it goes) and CONDITION-SEED-eval (the
policy in the end, on all splits). Given are the mean over the seeds and the half width of its 95 % interval (Student's
t; none with one seed), without and with experience; the same of the difference from plain GRPO seed by seed, what has
experience compared with GRPO, which has none; and the steps to 90 % of GRPO's best validation (linear between
validations, from the base policy's at step 0; the mean over the seeds that get there).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from agentevolver.evaluation.table_results import mean_curve
from agentevolver.utils.files import read_jsonl
from agentevolver.utils.statistics import estimate, half_width

BASE, BASELINE = "base", "basic"
CONDITIONS = (BASE, BASELINE, "questioning", "navigating", "attributing", "overall")
SHARE = 0.9
# Where a run's metrics name no split, it was validated on this one alone.
SPLIT_OF_TRAINING = "dev"
GUIDED = " guided"
Curve = dict[int, float]


@dataclass
class Run:
    """One condition with one seed: validations while it trained, and the last policy's, by split (`dev`, `dev guided`,
    …)."""

    curves: dict[str, Curve] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)


def scores(folder: Path) -> dict[str, Curve]:
    """Return the average reward by step of each split, `<split>` and `<split> guided`."""
    found: dict[str, Curve] = {}
    for record in read_jsonl(folder / "metrics.jsonl"):
        for key, value in record.items():
            if key.startswith("val-core/") and "/reward/mean@" in key:
                parts = key.split("/")[2:-2]
                split = next((part for part in parts if part != "guided"), SPLIT_OF_TRAINING)
                found.setdefault(f"{split}{GUIDED}" if "guided" in parts else split, {})[int(record["step"])] = float(
                    value
                )
    return found


def read_runs(experiments: Path) -> dict[str, dict[str, Run]]:
    """Return the runs by condition and seed; the base policy's evaluation is step 0 of every other condition with its
    seed."""
    runs: dict[str, dict[str, Run]] = {}
    for path in sorted(experiments.glob("*-*/metrics.jsonl")):
        condition, seed, *rest = path.parent.name.split("-")
        run = runs.setdefault(condition, {}).setdefault(seed, Run())
        if rest:
            run.final = {split: curve[max(curve)] for split, curve in scores(path.parent).items()}
        else:
            run.curves = scores(path.parent)
    for seed, base in runs.get(BASE, {}).items():
        for condition in set(runs) - {BASE}:
            if (of_seed := runs[condition].get(seed)) and SPLIT_OF_TRAINING in base.final:
                of_seed.curves.setdefault(SPLIT_OF_TRAINING, {}).setdefault(0, base.final[SPLIT_OF_TRAINING])
    return {condition: runs[condition] for condition in CONDITIONS if condition in runs}


def steps_to(curve: Curve, level: float) -> float | None:
    """Return the step at which a curve first reaches a level, linear between its points; None if it never does."""
    points = sorted(curve.items())
    if points and points[0][1] >= level:
        return float(points[0][0])
    for (before, low), (after, high) in pairwise(points):
        if high >= level:
            return before + (after - before) * (level - low) / (high - low)
    return None


def finals(runs: dict[str, Run], split: str) -> list[float]:
    return [run.final[split] for run in runs.values() if split in run.final]


def curves_of(runs: dict[str, Run], split: str) -> list[Curve]:
    return [run.curves[split] for run in runs.values() if split in run.curves]


def interval(values: Sequence[float], sign: str = "") -> str:
    found = estimate(values)
    return "" if found is None else found.shown(sign)


def reached(runs: dict[str, Run], split: str, level: float) -> str:
    """Return the mean step at which the runs reach a level, and how many of them do."""
    steps = [steps_to(curve, level) for curve in curves_of(runs, split)]
    there = [step for step in steps if step is not None]
    return f"{mean(there):.0f} ({len(there)} of {len(steps)})" if there else "never" if steps else ""


def tables(runs: dict[str, dict[str, Run]], splits: Sequence[str]) -> tuple[Table, Table]:
    """Return the values and the differences from plain GRPO: a column per condition, a row per split."""
    plain = runs.get(BASELINE, {})
    best = mean([max(curve.values()) for curve in curves_of(plain, SPLIT_OF_TRAINING)] or [float("nan")])
    absolute = Table(
        "", *(f"{condition} ({len(by_seed)})" for condition, by_seed in runs.items()), title="reward (seeds)"
    )
    for split in splits:
        absolute.add_row(split, *(interval(finals(by_seed, split)) for by_seed in runs.values()))
    for split in (SPLIT_OF_TRAINING, SPLIT_OF_TRAINING + GUIDED):
        steps = (reached(by_seed, split, SHARE * best) for by_seed in runs.values())
        absolute.add_row(f"steps to {SHARE * best:.3f} on {split}", *steps)
    others = {condition: by_seed for condition, by_seed in runs.items() if condition not in (BASE, BASELINE)}
    relative = Table("", *others, title=f"minus {BASELINE}, which has no experience, seed by seed")
    for split in splits:
        row = []
        for by_seed in others.values():
            pairs = (
                (run.final.get(split), plain[seed].final.get(split.removesuffix(GUIDED)))
                for seed, run in by_seed.items()
                if seed in plain
            )
            row.append(
                interval(
                    [value - reference for value, reference in pairs if value is not None and reference is not None],
                    "+",
                )
            )
        relative.add_row(split, *row)
    return absolute, relative


def write_csv(runs: dict[str, dict[str, Run]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["condition", "seed", "validation", "split", "step", "reward"])
        for condition, by_seed in runs.items():
            for seed, run in by_seed.items():
                for split, curve in sorted(run.curves.items()):
                    writer.writerows(
                        [condition, seed, "training", split, step, f"{curve[step]:.4f}"] for step in sorted(curve)
                    )
                writer.writerows(
                    [condition, seed, "end", split, "", f"{value:.4f}"] for split, value in sorted(run.final.items())
                )


def plot(runs: dict[str, dict[str, Run]], splits: Sequence[str], path: Path) -> None:
    """Draw dev while training (mean over the seeds, dashed with experience) beside the last policies (mean, interval,
    every seed)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.5), width_ratios=(2, 3))
    for number, (condition, by_seed) in enumerate(runs.items()):
        for suffix, style in (("", "-"), (GUIDED, "--")):
            curves = curves_of(by_seed, SPLIT_OF_TRAINING + suffix)
            if shared := mean_curve(curves):
                left.plot(list(shared), list(shared.values()), style, color=f"C{number}", marker=".")
        for place, split in enumerate(splits):
            if values := finals(by_seed, split):
                x = place + (number - (len(runs) - 1) / 2) * 0.13
                right.errorbar(x, mean(values), half_width(values), fmt="o", color=f"C{number}", capsize=3)
                right.plot([x] * len(values), values, "_", color=f"C{number}", alpha=0.6)
        right.plot([], [], "o", color=f"C{number}", label=condition)
    left.set(title=f"{SPLIT_OF_TRAINING} while training (dashed: with experience)", xlabel="step", ylabel="reward")
    right.set(title="the policies in the end", xticks=range(len(splits)), xticklabels=splits)
    right.legend(fontsize="small", ncols=2)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=Path, required=True, help="the project's folder")
    parser.add_argument("--out", type=Path, required=True, help="path of CSV and PNG without suffix")
    arguments = parser.parse_args()
    runs = read_runs(arguments.experiments)
    splits = sorted({split for by_seed in runs.values() for run in by_seed.values() for split in run.final})
    if not splits:
        sys.exit(f"{arguments.experiments}: no finished evaluation; run examples/ablation.sh")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(runs, arguments.out.with_suffix(".csv"))
    plot(runs, splits, arguments.out.with_suffix(".png"))
    for table in tables(runs, splits):
        Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

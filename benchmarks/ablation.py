"""What each part adds, from the runs of `examples/ablation.sh`: one table, one CSV, one figure.

    python benchmarks/ablation.py --experiments experiments/ablation --out docs/img/ablation

Reads `metrics.jsonl` of the folders CONDITION-SEED (training, validated on dev as it goes) and CONDITION-SEED-eval (the policy in the
end, on all splits). Given are the mean over the seeds and the half width of its 95 % interval (Student's t; none with one seed),
without and with experience, and the steps to 90 % of plain GRPO's best validation (linear between validations, the mean over the seeds
that get there).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

from rich.console import Console
from rich.table import Table
from scipy.stats import t

from agentevolver.tracking import read_jsonl

CONDITIONS = ("base", "basic", "questioning", "navigating", "attributing", "overall")
BASELINE = "basic"
SHARE = 0.9
# Where a run's metrics name no split, it was validated on this one alone.
SPLIT_OF_TRAINING = "dev"
Curve = dict[int, float]


def scores(folder: Path) -> dict[str, Curve]:
    """Return the average reward by step of each split, `<split>` and `<split> guided`."""
    found: dict[str, Curve] = defaultdict(dict)
    for record in read_jsonl(folder / "metrics.jsonl"):
        for key, value in record.items():
            if key.startswith("val-core/") and "/reward/mean@" in key:
                parts = key.split("/")[2:-2]
                guided = "guided" in parts
                split = next((part for part in parts if part != "guided"), SPLIT_OF_TRAINING)
                found[f"{split} guided" if guided else split][int(record["step"])] = float(value)
    return dict(found)


def steps_to(curve: Curve, level: float) -> float | None:
    """Return the step at which a curve first reaches a level, linear between its points; None if it never does."""
    points = sorted(curve.items())
    if points and points[0][1] >= level:
        return float(points[0][0])
    for (before, low), (after, high) in pairwise(points):
        if high >= level:
            return before + (after - before) * (level - low) / (high - low)
    return None


def interval(values: Sequence[float]) -> str:
    """Return mean and half width of its 95 % interval."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{mean(values):.3f} ± {t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=Path, required=True, help="the project's folder")
    parser.add_argument("--out", type=Path, required=True, help="path of the CSV without suffix")
    arguments = parser.parse_args()
    final: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    curves: dict[str, list[Curve]] = defaultdict(list)
    for path in sorted(arguments.experiments.glob("*-*/metrics.jsonl")):
        condition, _, rest = path.parent.name.partition("-")
        if rest.endswith("-eval"):
            for split, curve in scores(path.parent).items():
                final[condition][split].append(curve[max(curve)])
        elif curve := scores(path.parent).get(SPLIT_OF_TRAINING):
            curves[condition].append(curve)
    if not final:
        sys.exit(f"{arguments.experiments}: no finished evaluation; run examples/ablation.sh")
    splits = sorted({split for of_condition in final.values() for split in of_condition})
    best = mean(max(curve.values()) for curve in curves[BASELINE]) if curves[BASELINE] else None
    table = Table("condition", "seeds", *splits, f"steps to {SHARE:.0%} of {BASELINE}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["condition", "split", "run", "reward"])
        for condition in sorted(final, key=lambda name: CONDITIONS.index(name) if name in CONDITIONS else len(CONDITIONS)):
            of_condition = final[condition]
            for split in splits:
                writer.writerows([condition, split, run, f"{value:.4f}"] for run, value in enumerate(of_condition.get(split, []), 1))
            reached = [steps_to(curve, SHARE * best) for curve in curves[condition]] if best is not None else []
            there = [step for step in reached if step is not None]
            told = f"{mean(there):.0f} ({len(there)} of {len(reached)})" if there else "never" if reached else ""
            table.add_row(condition, str(max(map(len, of_condition.values()))), *(interval(of_condition.get(s, [])) for s in splits), told)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

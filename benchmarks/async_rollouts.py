"""Asynchronous rollouts beside the synchronous trainer: seconds a step, staleness and success, with and without slow
episodes.

    python -m benchmarks.async_rollouts [--steps 12] [--rounds 2] [--out DIR] [key=value …]
    python -m benchmarks.async_rollouts --curves [--steps 80] [--seeds 1 2 3] [--out DIR] [key=value …]

The first is PocketWorld in turn with both trainers, once as it is and once with 3 % of the episodes sleeping 1.5 s an
action. Seconds a step are the wall's from the end of one to the end of the next, whatever is done in between; the first
two steps are left out, which begin more batches, and the last one, which begins none. Medians are of all rounds.

The second trains to the end, with validation, for each seed: synchronous, asynchronous, and that without
`rollout_correction`. It is resumed by the same command: what is finished is not run again, and a run that was cut off
goes on from its last checkpoint. `benchmarks/learning_curves.py` draws what it leaves in DIR/pocket.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev

from rich.console import Console
from rich.table import Table

from agentevolver.utils.files import read_jsonl
from agentevolver.utils.net import take_any_port

ROOT = Path(__file__).resolve().parents[1]
FIRST_STEPS, LAST_STEPS = 2, 1
SLOW = ("env_service.env_params.latency.share=0.03", "env_service.env_params.latency.seconds=1.5")
TRAINERS = {"sync": "basic", "async": "async"}
CURVES = {
    "sync": ("basic", ()),
    "async": ("async", ()),
    "async, no correction": ("async", ("algorithm.rollout_correction.rollout_is=null",)),
}


@dataclass(frozen=True)
class Measured:
    """The records of a run's steps that count, and the seconds from each step's end to the next one's."""

    records: list[dict[str, float]]
    seconds: list[float]

    @classmethod
    def of(cls, records: Sequence[dict[str, float]]) -> Measured:
        """Take the records of a run without its first and last steps."""
        steps = [record for record in records if "timing_s/step" in record]
        kept = steps[FIRST_STEPS - 1 : len(steps) - LAST_STEPS]
        seconds = [later["time"] - one["time"] for one, later in pairwise(kept)]
        return cls(kept[1:], seconds)


def train(folder: Path, name: str, conf: str, overrides: Sequence[str]) -> list[dict[str, float]]:
    """Run the launcher to the end, or on from where it was, and return the run's metrics; raises CalledProcessError."""
    command = [
        *(sys.executable, "launcher.py", "--conf", f"examples/{conf}.yaml", "ray.dashboard=false"),
        *(f"experiment.root={folder}", "trainer.project_name=pocket", f"trainer.experiment_name={name}"),
        *(f"env_service.env_url=http://127.0.0.1:{take_any_port()}", *overrides),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.out").open("ab") as output:
        subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=True)
    records: list[dict[str, float]] = read_jsonl(folder / "pocket" / name / "metrics.jsonl")
    return records


def side_by_side(
    folder: Path, steps: int, rounds: int, overrides: Sequence[str]
) -> dict[tuple[str, str], list[Measured]]:
    """Run both trainers in turn, without and with slow episodes."""
    plain = ("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1")
    runs: dict[tuple[str, str], list[Measured]] = {}
    for number in range(1, rounds + 1):
        for world, latency in (("as it is", ()), ("3 % slow", SLOW)):
            for trainer, conf in TRAINERS.items():
                name = f"{trainer}-{'slow' if latency else 'plain'}-{number}"
                given = (*plain, f"trainer.total_training_steps={steps}", *latency, *overrides)
                runs.setdefault((world, trainer), []).append(Measured.of(train(folder, name, conf, given)))
                print(f"{name}: {median(runs[world, trainer][-1].seconds):.2f} s a step", flush=True)
    return runs


def print_steps(runs: Mapping[tuple[str, str], Sequence[Measured]]) -> None:
    """Print seconds a step, what each trainer gains, and how old the rollouts are."""
    table = Table(
        *("episodes", "trainer", "s a step: median", "least to greatest", "sync / this", "staleness: mean, max"),
        *("age: mean, max", "cut off by updates", "success"),
    )
    for (world, trainer), measured in runs.items():
        seconds = [one for run in measured for one in run.seconds]
        records = [record for run in measured for record in run.records]
        sync = median(one for run in runs[world, "sync"] for one in run.seconds)

        def told(key: str, records: Sequence[Mapping[str, float]] = records) -> list[float]:
            return [record[key] for record in records if key in record] or [0.0]

        staleness, ages = told("rollout/staleness/mean"), told("rollout/age/mean")
        table.add_row(
            *(world, trainer, f"{median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}"),
            f"{sync / median(seconds):.2f}",
            f"{mean(staleness):.2f}, {max(told('rollout/staleness/max')):.0f}",
            f"{mean(ages):.2f}, {max(told('rollout/age/max')):.0f}",
            f"{mean(told('rollout/spans_updates')):.0%}",
            f"{mean(told('rollout/success')):.2f}",
        )
    Console(width=160).print(table)


def curves(folder: Path, steps: int, seeds: Sequence[int], overrides: Sequence[str]) -> None:
    """Train to the end for each seed and condition, whatever was done before; and print the ends."""
    ends: dict[str, list[tuple[float, float, list[dict[str, float]]]]] = {}
    for seed in seeds:  # in turn, so that a cut-off leaves whole comparisons
        for condition, (conf, own) in CURVES.items():
            name = f"{condition.replace(', ', '-').replace(' ', '-')}-{seed}"
            path = folder / "pocket" / name / "metrics.jsonl"
            records: list[dict[str, float]] = read_jsonl(path) if path.exists() else []
            if not records or records[-1]["step"] < steps:
                given = (f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}")
                given += (f"trainer.total_training_steps={steps}", *own, *overrides)
                records = train(folder, name, conf, given)
            metric = next(key for key in records[-1] if key.startswith("val-core/") and "/mean@" in key)
            seconds = median(record["timing_s/step"] for record in records if "timing_s/step" in record)
            ends.setdefault(condition, []).append((records[-1][metric], seconds, records))
            print(f"{name}: {records[-1][metric]:.3f} after {steps} steps, {seconds:.2f} s a step", flush=True)
    table = Table("condition", "success at the end: by seed", "mean", "deviation", "s a step", "success by age")
    for condition, found in ends.items():
        values = [value for value, _, _ in found]
        table.add_row(
            *(condition, ", ".join(f"{value:.3f}" for value in values), f"{mean(values):.3f}"),
            *(f"{stdev(values):.3f}" if len(values) > 1 else "-", f"{mean(s for _, s, _ in found):.2f}"),
            ", ".join(f"{age}: {success:.2f}" for age, success in by_age([r for *_, rs in found for r in rs]).items()),
        )
    Console(width=160).print(table)


def by_age(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean success of the rollouts of each age, weighted by how many they are."""
    weights: dict[str, float] = {}
    sums: dict[str, float] = {}
    for record in records:
        for key, success in record.items():
            if key.startswith("rollout/age_") and key.endswith("/success"):
                age, share = key.split("/")[1].removeprefix("age_"), record[key.replace("/success", "/share")]
                weights[age] = weights.get(age, 0.0) + share
                sums[age] = sums.get(age, 0.0) + share * success
    return {age: sums[age] / weights[age] for age in sorted(weights)}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="12, of curves 80")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("experiments/async_rollouts"))
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    folder = arguments.out.resolve()
    if arguments.curves:
        curves(folder, arguments.steps or 80, arguments.seeds, arguments.overrides)
        return 0
    steps = arguments.steps or 12
    if steps < FIRST_STEPS + LAST_STEPS + 1:
        parser.error(f"--steps {steps}: at least {FIRST_STEPS + LAST_STEPS + 1}, others are left out")
    folder /= time.strftime("%Y%m%d-%H%M%S")
    print_steps(side_by_side(folder, steps, arguments.rounds, arguments.overrides))
    return 0


if __name__ == "__main__":
    sys.exit(main())

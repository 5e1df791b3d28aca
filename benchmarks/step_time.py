"""Seconds of a training step by phase, from a real run of the shipped configuration.

    python benchmarks/step_time.py [--conf examples/basic.yaml] [--steps 12] [key=value …]

Runs the launcher without validation and checkpoints, leaves the first two steps out (processes still import then), and prints the
median, least and greatest seconds of each phase, with the share of the step that it takes. Also prints the time from the launch to
the first step. A step's phases do not overlap; `other` is what verl's loop does between them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from agentevolver.tracking import read_jsonl

PHASES = {
    "rollout (gen)": "timing_s/gen",
    "old log-probs": "timing_s/old_log_prob",
    "reference log-probs": "timing_s/ref",
    "advantages": "timing_s/adv",
    "actor update": "timing_s/update_actor",
    "weight sync": "timing_s/update_weights",
}
WARM_UP = 2
ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conf", type=Path, default=ROOT / "examples" / "basic.yaml")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="step-time-") as folder:
        run = [
            *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
            *(f"trainer.total_training_steps={arguments.steps}", f"experiment.root={folder}"),
            *arguments.overrides,
        ]
        began = time.time()
        done = subprocess.run([sys.executable, str(ROOT / "launcher.py"), "--conf", str(arguments.conf), *run], cwd=ROOT)
        if done.returncode:
            return done.returncode
        records = read_jsonl(next(Path(folder).rglob("metrics.jsonl")))
    first = records[0]
    print_table(records[WARM_UP:], launch_s=first["time"] - first["timing_s/step"] - began)
    return 0


def print_table(records: list[dict[str, float]], launch_s: float) -> None:
    rows = int(records[0]["rollout/trajectories"])
    turns = median(r["rollout/steps/mean"] for r in records)
    table = Table("phase", "median s", "least", "greatest", "share", title=f"{rows} episodes of {turns:.1f} turns, {len(records)} steps")
    step = [r["timing_s/step"] for r in records]
    phases = {name: [r.get(key, 0.0) for r in records] for name, key in PHASES.items()}
    phases["other"] = [whole - sum(column[i] for column in phases.values()) for i, whole in enumerate(step)]
    for name, seconds in {**phases, "step": step}.items():
        share = median(s / whole for s, whole in zip(seconds, step, strict=True))
        table.add_row(name, *(f"{f(seconds):.2f}" for f in (median, min, max)), f"{share:.0%}")
    console = Console()
    console.print(table)
    tokens = median(r["rollout/tokens_per_s"] for r in records)
    console.print(f"launch to the first step: {launch_s:.0f} s; sampled tokens/s while rolling out: {tokens:.0f}")


if __name__ == "__main__":
    sys.exit(main())

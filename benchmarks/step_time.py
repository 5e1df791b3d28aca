"""Seconds of a training step by phase and of CPU time by process, from real runs of the shipped configuration.

    python benchmarks/step_time.py [--conf examples/basic.yaml] [--steps 12] [--before CHECKOUT] [--rounds 2] [key=value
    …]

Runs the launcher without validation and checkpoints, leaves the first two steps out, and prints the median, least and
greatest seconds of each phase. A step's phases do not overlap; `other` is what verl's loop does between them. Beside
it: the time from the launch to the first step, and each process's CPU seconds until then and in a step, which other
work on the machine disturbs far less than the wall's. With `--before` a second checkout (`git worktree add CHECKOUT
COMMIT`) is run in turn with this one, `--rounds` times each.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from agentevolver.utils.files import read_jsonl

PHASES = {
    "rollout (gen)": "timing_s/gen",
    "old log-probs": "timing_s/old_log_prob",
    "reference log-probs": "timing_s/ref",
    "advantages": "timing_s/adv",
    "actor update": "timing_s/update_actor",
    "weight sync": "timing_s/update_weights",
}
WARM_UP = 2
SAMPLE_S = 0.25
SHOWN_CPU_S = 0.05
MARK = "AGENTEVOLVER_STEP_TIME"
ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


class CpuSampler(threading.Thread):
    """CPU seconds of every process that carries a mark in its environment, sampled until `stop` is called."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self._mark = f"{MARK}={mark}".encode()
        self._over = threading.Event()
        self._carries: dict[tuple[str, str], bool] = {}
        self._spent: dict[tuple[str, str], tuple[str, float]] = {}
        self._samples: list[tuple[float, dict[str, float]]] = []

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                self._look_at(pid)
            by_name: dict[str, float] = defaultdict(float)
            for name, seconds in self._spent.values():
                by_name[name] += seconds
            self._samples.append((time.time(), dict(by_name)))

    def _look_at(self, pid: str) -> None:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            process = pid, fields[19]
            if process not in self._carries:
                self._carries[process] = self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if self._carries[process]:
                title = process_name(Path(f"/proc/{pid}/cmdline").read_bytes())
                self._spent[process] = title, (int(fields[11]) + int(fields[12])) / TICKS
        except OSError:  # it ended meanwhile, or is another user's
            return

    def stop(self) -> None:
        """End the sampling and wait for it."""
        self._over.set()
        self.join()

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Return the CPU seconds that each kind of process spent between two times."""
        first, last = self._at(begin), self._at(end)
        return {name: seconds - first.get(name, 0.0) for name, seconds in last.items()}

    def _at(self, when: float) -> dict[str, float]:
        return max(
            (sample for sample in self._samples if sample[0] <= when), default=(0.0, {}), key=lambda sample: sample[0]
        )[1]


def process_name(command: bytes) -> str:
    """Return what a process is, from its command line: a Ray worker's class, a Python module, a program."""
    words = command.replace(b"\0", b" ").decode(errors="replace").split()
    if not words:
        return "?"
    if words[0].startswith(("ray::", "VLLM::")):
        return re.split(r"[.(]", words[0])[0]
    if any(word.endswith("preload/client.py") for word in words):
        return "preload client"
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    script = next((word for word in words[1:] if word.endswith(".py")), words[0])
    return Path(script).name.removeprefix("ray-dashboard-")


@dataclass(frozen=True)
class Run:
    """What one run measured: the records of its steps after the warm-up, the launch, and CPU seconds by process."""

    records: list[dict[str, float]]
    launch_s: float
    launch_cpu: Mapping[str, float]
    step_cpu: Mapping[str, float]


def measure(checkout: Path, conf: Path, steps: int, overrides: list[str]) -> Run:
    """Run a checkout's launcher; raises CalledProcessError when it fails."""
    python = checkout / ".venv" / "bin" / "python"
    mark = uuid4().hex
    paths = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="step-time-") as folder:
        run = [
            *("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"),
            *(f"trainer.total_training_steps={steps}", f"experiment.root={folder}"),
            *overrides,
        ]
        command = [str(python) if python.exists() else sys.executable, "launcher.py", "--conf", str(conf), *run]
        sampler = CpuSampler(mark)
        sampler.start()
        began = time.time()
        try:
            subprocess.run(command, cwd=checkout, env={**os.environ, "PYTHONPATH": paths, MARK: mark}, check=True)
        finally:
            sampler.stop()
        records = read_jsonl(next(Path(folder).rglob("metrics.jsonl")))
    first, warm, last = records[0], records[min(WARM_UP, len(records)) - 1], records[-1]
    training = first["time"] - first["timing_s/step"]
    measured = max(len(records) - WARM_UP, 1)
    by_process = sampler.between(warm["time"], last["time"])
    return Run(
        records[WARM_UP:],
        launch_s=training - began,
        launch_cpu=sampler.between(began, training),
        step_cpu={name: seconds / measured for name, seconds in by_process.items()},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conf", type=Path, default=Path("examples/basic.yaml"), help="from the checkout's folder")
    parser.add_argument("--steps", type=int, default=12, help=f"more than {WARM_UP}")
    parser.add_argument("--before", type=Path, default=None, help="another checkout, run in turn with this one")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    checkouts = {"before": arguments.before.resolve()} if arguments.before is not None else {}
    checkouts["after" if checkouts else "this"] = ROOT
    runs: dict[str, list[Run]] = {name: [] for name in checkouts}
    for _ in range(arguments.rounds):
        for name, checkout in checkouts.items():
            runs[name].append(measure(checkout, arguments.conf, arguments.steps, arguments.overrides))
    print_phases(runs)
    print_cpu(runs)
    return 0


def print_phases(runs: Mapping[str, list[Run]]) -> None:
    """Print the seconds of a step by phase."""
    table = Table("phase", *(f"{name}: median s" for name in runs), *(f"{name}: least to greatest" for name in runs))
    columns = {name: _phases([record for run in measured for record in run.records]) for name, measured in runs.items()}
    for phase in next(iter(columns.values())):
        seconds = [column[phase] for column in columns.values()]
        table.add_row(
            phase, *(f"{median(s):.2f}" for s in seconds), *(f"{min(s):.2f} to {max(s):.2f}" for s in seconds)
        )
    console = Console()
    console.print(table)
    for name, measured in runs.items():
        records = [record for run in measured for record in run.records]
        rows, turns = int(records[0]["rollout/trajectories"]), median(r["rollout/steps/mean"] for r in records)
        tokens = median(r["rollout/tokens_per_s"] for r in records)
        launches = ", ".join(f"{run.launch_s:.0f}" for run in measured)
        console.print(
            f"{name}: {rows} episodes of {turns:.1f} turns, {len(records)} steps, {tokens:.0f} sampled tokens/s while "
            "rolling out"
        )
        console.print(f"{name}: launch to the first step {launches} s")


def _phases(records: list[dict[str, float]]) -> dict[str, list[float]]:
    step = [r["timing_s/step"] for r in records]
    phases = {name: [r.get(key, 0.0) for r in records] for name, key in PHASES.items()}
    other = [whole - sum(column[i] for column in phases.values()) for i, whole in enumerate(step)]
    return {**phases, "other": other, "step": step}


def print_cpu(runs: Mapping[str, list[Run]]) -> None:
    """Print the CPU seconds of each kind of process until the first step, and in a step: the mean of the runs."""
    spent: dict[str, list[float]] = {}
    for column, (measured, kind) in enumerate(
        (measured, kind) for measured in runs.values() for kind in ("launch_cpu", "step_cpu")
    ):
        for run in measured:
            for name, seconds in getattr(run, kind).items():
                spent.setdefault(name, [0.0] * 2 * len(runs))[column] += seconds / len(measured)
    table = Table("process", *(f"{name}: CPU s {when}" for name in runs for when in ("until the first step", "a step")))
    for name, seconds in sorted(spent.items(), key=lambda item: -max(item[1])):
        if max(seconds) >= SHOWN_CPU_S:
            table.add_row(name, *(f"{s:.2f}" for s in seconds))
    table.add_row("all", *(f"{sum(column):.2f}" for column in zip(*spent.values(), strict=True)))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())

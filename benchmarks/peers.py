"""A race: this project beside TRL, the same policy on the same multi-turn tasks, in turn in one run.

    python -m benchmarks.peers [--venv .venv-trl] [--steps 8] [--rounds 2]

Ours is `examples/basic.yaml` as the launcher runs it (vLLM's CPU build samples, verl's FSDP engine updates). TRL's
GRPOTrainer is installed into a virtual environment of its own, once (no CUDA package comes along). It trains through
its `environment_factory` over our environment service and our synchronous client (transformers' `generate` samples),
and once more with a single reply and no environment. The seed policy of 0.9 M parameters, 8 tasks x 8 rollouts of
PocketWorld a step, two optimiser steps, KL to the reference, fp32, as many threads as cores. A step's seconds are wall
time, medians after two steps of warm-up; CPU seconds are of all processes, the environment service too. Where TRL's
engine and ours differ, so do the replies that they sample: the table has the tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console
from rich.table import Table

from agentevolver.builtin.seed import seed_policy_path
from benchmarks.env_service import cpu_s, server
from benchmarks.step_time import PHASES, ROOT, WARM_UP, measure

TORCH = "torch==2.13.0"
PACKAGES = ("transformers==5.10.4", "accelerate==1.15.0", "datasets==5.2.0", "trl==1.16.0")
# What our client needs there, and TRL's tools.
OTHERS = ("orjson", "httpx", "aiohttp", "jmespath")
Row = dict[str, float]
ROWS = (
    "rollout",
    "  sampling",
    "  environment, in TRL's own process",
    "log-probs, old and reference",
    "update and the rest",
    "weights into the engine",
    "step",
    "CPU, all processes",
    "replies sampled",
    "tokens sampled",
    "tokens trained on, with prompts",
)


def install(venv: Path) -> Path:
    """Make TRL's virtual environment where there is none, and return its Python."""
    python = venv / "bin" / "python"
    done = venv / "complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
        subprocess.run([*pip, TORCH], check=True)
        # The CPU build says so in its version: whatever wanted another one would be refused.
        version = subprocess.run(
            [str(python), "-c", "import torch; print(torch.__version__)"], check=True, capture_output=True, text=True
        ).stdout.strip()
        constraint = venv / "constraints.txt"
        constraint.write_text(f"torch=={version}\n", encoding="utf-8")
        subprocess.run([*pip, "-c", str(constraint), *PACKAGES, *OTHERS], check=True)
        done.touch()
    return python


def of_trl(python: Path, steps: int, *, single: bool) -> list[Row]:
    """Train by TRL and return its steps; raises CalledProcessError."""
    with (
        tempfile.TemporaryDirectory() as folder,
        server("-m", "env_service", "serve", "--env", "pocket", "--port", "PORT") as (url, process),
    ):
        out = Path(folder, "steps.jsonl")
        threads = str(os.cpu_count() or 1)
        command = [*(str(python), "-m", "benchmarks.peers_trl", str(seed_policy_path()), str(out), "--url", url)]
        command += ["--steps", str(steps), *(["--single"] if single else [])]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": threads}
        before = cpu_s(psutil.Process(process.pid))
        subprocess.run(command, cwd=ROOT, env=environ, check=True)
        served = (cpu_s(psutil.Process(process.pid)) - before) / steps
        records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()][WARM_UP:]
    return [
        {
            "rollout": one["sample and score"] - one.get("log-probs", 0.0),
            "  sampling": one["generate"],
            "  environment, in TRL's own process": one.get("environment", 0.0),
            "log-probs, old and reference": one.get("log-probs", 0.0),
            "update and the rest": one["wall"] - one["sample and score"],
            "weights into the engine": 0.0,
            "step": one["wall"],
            "CPU, all processes": one["cpu"] + (0.0 if single else served),
            "replies sampled": one["replies"],
            "tokens sampled": one["sampled tokens"],
            "tokens trained on, with prompts": one["prompt tokens"] + one["completion tokens"],
        }
        for one in records
    ]


def of_ours(steps: int, overrides: list[str]) -> list[Row]:
    """Train by the launcher and return its steps; raises CalledProcessError."""
    run = measure(ROOT, Path("examples/basic.yaml"), steps, ["ray.dashboard=false", *overrides])
    cpu = sum(run.step_cpu.values())
    rows = []
    for one in run.records:
        phases = {name: one.get(key, 0.0) for name, key in PHASES.items()}
        logs = phases["old log-probs"] + phases["reference log-probs"]
        rollout, weights = phases["rollout (gen)"], phases["weight sync"]
        rows.append(
            {
                "rollout": rollout,
                "log-probs, old and reference": logs,
                "update and the rest": one["timing_s/step"] - rollout - logs - weights,
                "weights into the engine": weights,
                "step": one["timing_s/step"],
                "CPU, all processes": cpu,
                "replies sampled": one["rollout/trajectories"] * one["rollout/steps/mean"],
                "tokens sampled": one["rollout/action_tokens"],
                "tokens trained on, with prompts": one.get("perf/total_num_tokens", 0.0),
            }
        )
    return rows


def main() -> None:
    """Run in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-trl")
    parser.add_argument("--steps", type=int, default=8, help=f"more than {WARM_UP}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of ours")
    options = parser.parse_args()
    python = install(options.venv.resolve())
    found: dict[str, list[Row]] = {"ours": [], "TRL, multi-turn": [], "TRL, one reply": []}
    for _ in range(options.rounds):
        found["ours"] += of_ours(options.steps, options.overrides)
        found["TRL, multi-turn"] += of_trl(python, options.steps, single=False)
        found["TRL, one reply"] += of_trl(python, options.steps, single=True)
    console = Console(width=120, highlight=False)
    table = Table("median of a step", *found)
    for name in ROWS:
        columns = ([row[name] for row in rows if name in row] for rows in found.values())
        number = "{:.0f}" if name.startswith(("replies", "tokens")) else "{:.2f}"
        table.add_row(name, *(number.format(median(column)) if column else "" for column in columns))
    console.print(table)
    step = {name: median(row["step"] for row in rows) for name, rows in found.items()}
    console.print(f"ours / TRL multi-turn: {step['ours'] / step['TRL, multi-turn']:.2f}")
    for name, rows in found.items():
        console.print(f"{name}: seconds of steps {', '.join(format(row['step'], '.2f') for row in rows)}")


if __name__ == "__main__":
    main()

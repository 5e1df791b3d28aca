"""A race: this project beside TRL and beside verl's own ToolAgentLoop, the same tasks, in turn in one run.

    python -m benchmarks.peers [--venv .venv-trl] [--native experiments/seed_hermes] [--steps 8] [--rounds 2]

Two pairs, since verl's ToolAgentLoop plays by native tool calls alone, which take more tokens than calls as text:

- with the shipped seed policy (0.9 M parameters), calls as text: ours is `examples/basic.yaml` as the launcher runs it;
  TRL's GRPOTrainer is installed into a virtual environment of its own, once (no CUDA package comes along), and trains
  through its `environment_factory` over our environment service and our synchronous client (`peers_trl`), and once more
  with a single reply and no environment;
- with the seed policy that calls tools in hermes' format (built here where `--native` is not there yet), native calls:
  ours is `examples/native_tools.yaml`; verl trains by its own trainer and its ToolAgentLoop over the same service
  (`peers_verl`).

All play 8 tasks x 8 rollouts of PocketWorld a step and make two optimiser steps, with KL to the reference, in fp32. A
step's seconds are wall time, medians after two steps of warm-up; CPU seconds are of all processes, the environment
service too. Engines differ, and so do the replies that they sample: the table has the tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from agentevolver.config.checks import Resolved, load
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.utils.net import take_any_port
from benchmarks import peers_verl
from benchmarks.server import cpu_s, server
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
    "mean reward",
)
OURS, TRL, ONE_REPLY, NATIVE, VERL = "ours", "TRL, multi-turn", "TRL, one reply", "ours, native", "verl, ToolAgentLoop"
PAIRS = {
    "the shipped policy, calls as text": (OURS, TRL, ONE_REPLY),
    "the policy of hermes' calls, native": (NATIVE, VERL),
}


@dataclass
class Found:
    """What is known of a contestant: what it ran with, and its steps."""

    terms: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


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


def policy(folder: Path) -> Path:
    """Build the policy that calls tools natively where there is none (minutes of one core), and return its folder."""
    if not (folder / "build.json").exists():
        command = [
            sys.executable,
            "-m",
            "agentevolver.recipes.offline.seed.policy",
            "--syntax",
            "hermes",
            "--splits",
            "dev",
        ]
        subprocess.run([*command, "--out", str(folder)], cwd=ROOT, check=True)
    return folder


def of_trl(python: Path, steps: int, found: Found, *, single: bool) -> None:
    """Train by TRL and add its steps; raises CalledProcessError."""
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
    first = records[0]
    found.terms = {
        "sampled by": "transformers' generate",
        "trained by": "TRL, GRPOTrainer",
        "rollouts a step": f"{first['rollouts']:.0f}",
        "optimiser steps": str(first["optimiser steps"]),
        "dtype": first["dtype"],
        "threads, sampling": str(first["threads"]),
        "threads, training": str(first["threads"]),
    }
    found.rows += [
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
            **({} if single else {"mean reward": one["reward"] / one["rollouts"]}),
        }
        for one in records
    ]


def of_ours(conf: str, steps: int, overrides: list[str], found: Found) -> None:
    """Train by the launcher and add its steps; raises CalledProcessError."""
    url = f"env_service.env_url=http://127.0.0.1:{take_any_port()}"
    run = measure(ROOT, Path(conf), steps, ["ray.dashboard=false", url, *overrides])
    cpu = sum(run.step_cpu.values())
    found.terms = terms(load(ROOT / conf, overrides), "this project", run.records[0]["rollout/trajectories"])
    found.rows += [
        row(
            one,
            cpu,
            replies=one["rollout/trajectories"] * one["rollout/steps/mean"],
            tokens=one["rollout/action_tokens"],
            reward=one["rollout/reward/mean"],
        )
        for one in run.records
    ]


def of_verl(conf: str, steps: int, overrides: list[str], found: Found) -> None:
    """Train by verl with what our configuration says, and add its steps; raises CalledProcessError."""
    ours = load(ROOT / conf, overrides)
    run = peers_verl.measure(ours, steps)
    found.terms = terms(ours, "verl, main_ppo", len(run.episodes[0]))
    found.rows += [
        row(
            one,
            run.step_cpu,
            replies=sum(episode["replies"] for episode in episodes),
            tokens=sum(episode["tokens"] for episode in episodes),
            reward=one["critic/score/mean"],
        )
        for one, episodes in zip(run.records, run.episodes, strict=True)
    ]


def terms(config: Resolved, trained_by: str, rollouts: float) -> dict[str, str]:
    """Return what a run of verl's engines is done with."""
    from agentevolver.trainer.verl_plugin.engine import own_threads

    def value(key: str) -> Any:
        return OmegaConf.select(config.config, key)

    part = "actor_rollout_ref"
    dtypes = {str(value(f"{part}.{key}.dtype")) for key in ("rollout", "actor.fsdp_config", "ref.fsdp_config")}
    return {
        "sampled by": "vLLM",
        "trained by": trained_by,
        "rollouts a step": f"{rollouts:.0f}",
        "optimiser steps": str(value("data.train_batch_size") // value(f"{part}.actor.ppo_mini_batch_size")),
        "dtype": ", ".join(sorted(dtypes)),
        "threads, sampling": config.env["OMP_NUM_THREADS"],
        "threads, training": str(own_threads()),
    }


def row(record: dict[str, float], cpu: float, *, replies: float, tokens: float, reward: float) -> Row:
    """Return a step of verl's trainer, or of ours, which is one, from its metrics."""
    phases = {name: record.get(key, 0.0) for name, key in PHASES.items()}
    logs = phases["old log-probs"] + phases["reference log-probs"]
    rollout, weights = phases["rollout (gen)"], phases["weight sync"]
    return {
        "rollout": rollout,
        "log-probs, old and reference": logs,
        "update and the rest": record["timing_s/step"] - rollout - logs - weights,
        "weights into the engine": weights,
        "step": record["timing_s/step"],
        "CPU, all processes": cpu,
        "replies sampled": replies,
        "tokens sampled": tokens,
        "tokens trained on, with prompts": record["perf/total_num_tokens"],
        "mean reward": reward,
    }


def main() -> None:
    """Run in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-trl")
    parser.add_argument("--native", type=Path, default=ROOT / "experiments" / "seed_hermes", help="a policy's folder")
    parser.add_argument("--steps", type=int, default=8, help=f"more than {WARM_UP}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of ours")
    options = parser.parse_args()
    python, hermes = install(options.venv.resolve()), policy(options.native.resolve())
    text = ["device=cpu", *options.overrides]
    native = [*text, f"actor_rollout_ref.model.path={hermes}"]
    found = {name: Found() for names in PAIRS.values() for name in names}
    for _ in range(options.rounds):
        of_ours("examples/basic.yaml", options.steps, text, found[OURS])
        of_trl(python, options.steps, found[TRL], single=False)
        of_trl(python, options.steps, found[ONE_REPLY], single=True)
        of_ours("examples/native_tools.yaml", options.steps, native, found[NATIVE])
        of_verl("examples/native_tools.yaml", options.steps, native, found[VERL])
    show(found)


def show(found: dict[str, Found]) -> None:
    """Print what each ran with, the medians of each pair, and the seconds of every step."""
    console = Console(width=120, highlight=False)
    for title, names in PAIRS.items():
        table = Table("median of a step", *names, title=title)
        for term in found[names[0]].terms:
            table.add_row(term, *(found[name].terms[term] for name in names))
        table.add_section()
        for measured in ROWS:
            columns = [[one[measured] for one in found[name].rows if measured in one] for name in names]
            number = "{:.0f}" if measured.startswith(("replies", "tokens")) else "{:.2f}"
            if any(columns):
                table.add_row(measured, *(number.format(median(column)) if column else "" for column in columns))
        console.print(table)
    step = {name: median(one["step"] for one in contestant.rows) for name, contestant in found.items()}
    for ours, theirs in ((OURS, TRL), (NATIVE, VERL)):
        console.print(f"{ours} / {theirs}: {step[ours] / step[theirs]:.2f}")
    for name, contestant in found.items():
        console.print(f"{name}: seconds of steps {', '.join(format(one['step'], '.2f') for one in contestant.rows)}")


if __name__ == "__main__":
    main()

"""Digests of three short seeded runs, to see whether a change of the code changed what they do.

    python -m benchmarks.digests run OUT [--only basic overall agent0] [--seeds 1 2 3]
    python -m benchmarks.digests compare BEFORE AFTER [--ignore PREFIX ...]

`run` trains each for 20 steps with a fixed seed (agent0: a round of 6 and 14, from `experiments/seed_calc`) into
OUT/d/NAME-SEED, leaves out what is there already, and prints a digest of each. `compare` takes two experiments, or two
folders of them, and prints the first difference of each file; exit code 1 if there is one. Counted are metrics without
times and spending, rollouts and validations (texts, rewards, how they ended), what the updates were made of, tasks,
rounds, and the pool of experience. Metrics whose names begin with an ignored prefix are left out. Floats depend on the
machine: compare runs of one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agentevolver.utils.files import read_jsonl
from agentevolver.utils.net import take_any_port

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("trainer.total_training_steps=20", "trainer.test_freq=10", "trainer.save_freq=-1")
RUNS = {
    "basic": (*STEPS, "trainer.val_before_train=false", "data.val_filter.n=16"),
    "overall": (
        *STEPS,
        "trainer.val_before_train=false",
        "data.val_filter.n=8",
        "task_manager.max_seed_tasks=40",
        "exp_manager.init_tasks=32",
    ),
    "agent0": ("recipes.agent0.rounds=1", "recipes.agent0.proposer.steps=6", "recipes.agent0.executor.steps=14"),
}
# Metrics that may differ between two runs with one seed: seconds, memory, and what language models cost (equal rollouts
# are judged once, whichever comes first, and a restarted process has no cache).
TIMES = (
    "timing_",
    "perf/",
    "actor/perf/",
    "coevolve/seconds/",
    "exp_manager/summary",
    "exp_manager/context_cost_",
    "rollout/tokens_per_s",
    "prm/label_seconds",
)
SPENT = (
    "llm/",
    "prm/cached",
    "prm/calls",
    "prm/repairs",
    "prm/prompt_tokens",
    "prm/completion_tokens",
    "prm/cost",
    "prm/parse_success",
)
SKIPPED_FOLDERS = {"logs", "launches", "checkpoints", "best", "tensorboard", "experience"}
DROPPED = {"time", "seconds", "origin", "proposer_ckpt", "executor_ckpt"}
POOL = "id, category, scope, when_to_use, content, uses, successes, lift_sum, paired, paired_utility"


def read(experiment: Path, ignored: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a run did: the records of each file by their ids."""
    found: dict[str, Any] = {}
    for path in sorted(experiment.rglob("*.jsonl")):
        inside = path.relative_to(experiment)
        if not SKIPPED_FOLDERS.intersection(inside.parts):
            records: dict[str, list[Any]] = {}
            for record in read_jsonl(path):
                name = next(
                    (str(record[key]) for key in ("step", "trajectory_id", "key", "task_id") if key in record), ""
                )
                records.setdefault(name, []).append(_kept(inside, record, ignored))
            found[str(inside)] = {name: sorted(some, key=json.dumps) for name, some in records.items()}
    pool = experiment / "experience.sqlite"
    if pool.exists():
        with closing(sqlite3.connect(f"file:{pool}?mode=ro", uri=True)) as database:
            rows = database.execute(f"SELECT {POOL} FROM records ORDER BY workspace, id").fetchall()
        found[pool.name] = {row[0]: list(row) for row in rows}
    return found


def _kept(path: Path, record: dict[str, Any], ignored: Sequence[str]) -> Any:
    if path.name == "metrics.jsonl":
        left_out = (*TIMES, *SPENT, *ignored)
        return {key: value for key, value in record.items() if key != "time" and not key.startswith(left_out)}
    if path.parent.name in ("trajectories", "validation"):
        outcome = record.get("outcome") or {}
        rewards = [step["reward"] for step in record["steps"]]
        return [record["messages"], rewards, record["stop_reason"], outcome.get("score")]
    return _without(record)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner) for key, inner in value.items() if key not in DROPPED}
    return [_without(inner) for inner in value] if isinstance(value, list) else value


def digest(content: object) -> str:
    """Return the sha256 of something that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return where two runs differ, with the first difference of each entry."""
    return [
        f"{name}: {_first(one.get(name), other.get(name))}"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]


def _first(a: Any, b: Any, place: str = "") -> str:
    if isinstance(a, dict) and isinstance(b, dict):
        key = next(key for key in sorted({*a, *b}, key=_in_order) if a.get(key) != b.get(key))
        return _first(a.get(key), b.get(key), f"{place}.{key}")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        i = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        return _first(a[i], b[i], f"{place}[{i}]")
    return f"{place}: {str(a)[:200]} / {str(b)[:200]}"


def _in_order(name: str) -> tuple[int, str]:
    return len(name) if name.isdigit() else 0, name


def experiments(folder: Path) -> dict[str, Path]:
    """Return the experiments at a path: itself, or those below it that end by themselves, by name.

    Raises:
        SystemExit: there is none.
    """
    if (folder / "config.yaml").exists():
        return {"": folder}
    found = {path.parent.name: path.parent for path in sorted(folder.glob("*/config.yaml"))}
    if not found:
        raise SystemExit(f"{folder} is no experiment and holds none")
    return found


def compare(before: Path, after: Path, ignored: Sequence[str]) -> int:
    """Print a line for each experiment that both have and for each of its files that differs."""
    ours, theirs = experiments(before), experiments(after)
    if not (both := sorted({*ours} & {*theirs})):
        raise SystemExit(f"{before} and {after} have no experiment of one name")
    failed = False
    for name in both:
        differences = differing(read(ours[name], ignored), read(theirs[name], ignored))
        print(name or after.name, "differs:" if differences else "equal")
        print("".join(f"  {line}\n" for line in differences), end="")
        failed |= bool(differences)
    return int(failed)


def run(out: Path, names: Sequence[str], seeds: Sequence[int]) -> int:
    """Train what is not there yet, one after the other, and print the digest of each file group."""
    failed = False
    for seed in seeds:
        for name in names:
            experiment, done = out / "d" / f"{name}-{seed}", out / f"{name}-{seed}.done"
            if not done.exists():
                out.mkdir(parents=True, exist_ok=True)
                command = [sys.executable, "launcher.py", "--conf", f"examples/{name}.yaml", *RUNS[name]]
                command += [f"experiment.root={out.resolve()}", "trainer.project_name=d", f"data.seed={seed}"]
                command += [f"trainer.experiment_name={name}-{seed}", "ray.dashboard=false"]
                command += [f"env_service.env_url=http://127.0.0.1:{take_any_port()}"]
                with open(out / f"{name}-{seed}.log", "w") as log:
                    code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT).returncode
                if code:
                    print(f"{name}-{seed} ended with {code}: see {log.name}")
                    failed = True
                    continue
                done.touch()
            print(f"{name}-{seed} {digest(read(experiment))}")
    return int(failed)


def main() -> int:
    """Run or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--only", nargs="+", choices=RUNS, default=[*RUNS])
    running.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--ignore", nargs="*", default=[], metavar="PREFIX")
    asked = parser.parse_args()
    if asked.command == "run":
        return run(asked.out, asked.only, asked.seeds)
    return compare(asked.before, asked.after, asked.ignore)


if __name__ == "__main__":
    sys.exit(main())

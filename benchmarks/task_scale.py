"""What many tasks cost in time and memory: the journal, the known queries, task files, the dataset with its epochs.

    python benchmarks/task_scale.py [--tasks 100000] [--steps 12] [--chars 1200] [--out figures.json]

Lays down the journal of a finished run that kept so many tasks (explorations of `--steps` observations of `--chars`
characters, five proposals each of which two and a half are kept), and goes through what a run, a start of the same
command, the reports and training do with it. No language model and no environment is asked, and embeddings are those of
feature hashing, which costs next to nothing. Each part
runs in a process of its own: seconds are CPU seconds of it, memory is the peak above what its imports take.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
# The folder of this file holds a script that is named like a package.
ROOT = str(Path(__file__).absolute().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

from agentevolver.embeddings import HashingEncoder  # noqa: E402
from agentevolver.types import Task  # noqa: E402
from benchmarks.dedup import queries  # noqa: E402
from task_manager.actions import format_of  # noqa: E402
from task_manager.dataset import MixedTasks  # noqa: E402
from task_manager.explore import make_strategy  # noqa: E402
from task_manager.journal import (  # noqa: E402
    Journal,
    Plan,
    read_journal,
)
from task_manager.known_queries import KnownQueries  # noqa: E402
from task_manager.pipeline import TaskPipeline  # noqa: E402
from task_manager.profile import shipped_profile  # noqa: E402
from task_manager.settings import TaskManagerSettings  # noqa: E402
from task_manager.tasks import read_objectives, write_objectives  # noqa: E402

PROPOSALS = 5
KEPT_SHARE = 0.5
MODELS = dict.fromkeys(("explorer", "synthesiser", "verifier", "judge"), "none")
MEGABYTE = 2**20

Work = Callable[[argparse.Namespace], dict[str, float]]


def settings_of() -> TaskManagerSettings:
    """Return the section of the run."""
    mixture = {"synthetic_data_ratio": 1.0, "use_original_tasks": False}
    return TaskManagerSettings.model_validate(
        {"n": 1, "num_explore_threads": 16, "mixture": mixture, "curriculum": {"enable": True}}
    )


def plan_of(tasks: int) -> Plan:
    """Return the plan of a run that keeps about so many tasks."""
    seeds = tuple(f"note_add.k{i}.0" for i in range(round(tasks / (PROPOSALS * KEPT_SHARE))))
    return Plan.of(
        settings_of(), env_type="pocket", env_params={}, profile=shipped_profile("pocket"), seeds=seeds, models=MODELS
    )


def records(options: argparse.Namespace) -> Iterator[tuple[str, str, Any]]:
    """Yield the records of the run as (kind, key, value)."""
    rng, plan = random.Random(0), plan_of(options.tasks)
    texts = queries(len(plan.seeds) * PROPOSALS)
    said = [" ".join(rng.choice(texts) for _ in range(options.chars // 60))[: options.chars] for _ in range(500)]
    yield "plan", "the", plan.to_dict()
    for place, seed in enumerate(plan.seeds):
        key = plan.exploration(seed, 0)
        steps = [
            {"action": f"look {i}", "observation": rng.choice(said), "phase": "depth"} for i in range(options.steps)
        ]
        world = {"env_type": "pocket", "seed_task_id": seed, "params": {}}
        yield (
            "exploration",
            key,
            {"world": world, "number": 0, "opening": said[0], "steps": steps, "ended": False, "seconds": 1.0},
        )
        mine = texts[place * PROPOSALS : (place + 1) * PROPOSALS]
        solution = ["note.find milk", "note.tag n2 fun", "done"]
        proposals = [{"query": query, "solution": solution, "confidence": 0.9} for query in mine]
        synthesis = plan.synthesis(key)
        yield "synthesis", synthesis, {"proposals": proposals, "rejected": []}
        kept = 0
        for index, query in enumerate(mine):
            verdict = plan.verdict(synthesis, index)
            passes = rng.random() < KEPT_SHARE
            change = {"path": "note/n2", "before": ["soap", "work"], "after": ["soap", "fun"]}
            check = {"changes": [change], "rest": "0" * 32, "answer": None, "must_finish": True}
            seen = [[action, said[index][:200]] for action in solution]
            stage = None if passes else "judge"
            yield (
                "verdict",
                verdict,
                {"dropped_by": stage, "reason": "", "steps": seen, "check": check, "changes": ["note/n2: fun"]},
            )
            if passes:
                task = task_of(f"{seed}#{kept}", query, solution, check)
                yield "decision", plan.decision(verdict), {"run": plan.run, "reason": "", "task": task.to_dict()}
                kept += 1


def task_of(task_id: str, query: str, solution: list[str], check: dict[str, Any]) -> Task:
    """Return a synthetic task."""
    metadata = {"split": "train", "validation": False, "synthetic": True, "seed_task_id": task_id.partition("#")[0]}
    metadata |= {"solution": solution, "confidence": 0.9, "env_params": {"explore_steps": 4}, "state_check": check}
    metadata["origin"] = {
        "run": "0" * 24,
        "exploration": "1" * 24,
        "synthesis": "2" * 24,
        "verdict": "3" * 24,
        "decision": "4" * 24,
    }
    return Task(task_id, "pocket", True, query, "\n".join(solution), "state", metadata)


def write_journal(options: argparse.Namespace) -> dict[str, float]:
    """The journal is written, record by record."""
    with Journal(options.folder) as journal:
        count = 0
        for count, (kind, key, value) in enumerate(records(options), 1):  # noqa: B007
            journal.put(kind, key, value)
    return {"records": count, "MB on disk": (options.folder / "journal.jsonl").stat().st_size / MEGABYTE}


def open_journal(options: argparse.Namespace) -> dict[str, float]:
    """The journal is opened by the next start."""
    with Journal(options.folder) as journal:
        return {"explorations": len(journal.records["exploration"])}


def start_again(options: argparse.Namespace) -> dict[str, float]:
    """The same command is started again and finds everything done: kept tasks and known queries are taken up, no job is
    left."""
    settings, fmt = settings_of(), format_of("pocket")
    pool = KnownQueries(settings.deduplication, HashingEncoder())
    nobody: Any = None
    with Journal(options.folder) as journal:
        run = TaskPipeline(
            plan_of(options.tasks),
            settings,
            journal,
            nobody,
            explorer=nobody,
            synthesiser=nobody,
            verifier=nobody,
            strategy=make_strategy("random", fmt, settings.strategy_args),
            fmt=fmt,
            pool=pool,
        )
        # What was dropped by the judge is decided, so that nothing is left to do.
        kept = asyncio.run(run.run())
    return {"kept": len(kept), "known queries": len(pool)}


def known_queries(options: argparse.Namespace) -> dict[str, float]:
    """New proposals are compared with all known queries, and shown their neighbours: milliseconds for each."""
    count, sample = options.tasks, 200
    texts = queries(count + sample, seed=1)
    out: dict[str, float] = {}
    for name, encoder in (("words", None), ("words and vectors", HashingEncoder())):
        pool = KnownQueries(settings_of().deduplication, encoder)
        asyncio.run(pool.load(texts[:count], [""] * count))
        for what in ("take", "neighbours"):
            began = time.process_time()
            asyncio.run(_ask(pool, what, texts[count:]))
            out[f"ms a {what}, {name}"] = 1000 * (time.process_time() - began) / sample
    return out


async def _ask(pool: KnownQueries, what: str, texts: list[str]) -> None:
    for text in texts:
        await (pool.take(text, "") if what == "take" else pool.neighbours(text, "", 8))


def report(options: argparse.Namespace) -> dict[str, float]:
    """The funnel is counted from the journal (`stats`)."""
    from task_manager.report import tally

    return {"kept": tally(read_journal(options.folder), plan_of(options.tasks)).kept}


def write_file(options: argparse.Namespace) -> dict[str, float]:
    """The task file is written."""
    path = options.folder / "tasks.jsonl"
    write_objectives(path, tasks_of(options))
    return {"MB on disk": path.stat().st_size / MEGABYTE}


def read_file(options: argparse.Namespace) -> dict[str, float]:
    """The task file is read, as every start of a training run does."""
    return {"tasks": len(read_objectives(options.folder / "tasks.jsonl"))}


def epochs(options: argparse.Namespace) -> dict[str, float]:
    """The dataset is made of the tasks, an epoch drawn, its groups told to the curriculum, a checkpoint made and taken
    up."""
    out: dict[str, float] = {}
    began = time.process_time()

    def lap(name: str) -> None:
        nonlocal began
        out[name] = time.process_time() - began
        began = time.process_time()

    tasks = tasks_of(options)
    lap("s to make the tasks")
    mixed = MixedTasks([], tasks, settings_of())
    lap("s dataset")
    drawn = mixed.draw()
    lap("s first epoch")
    rng = random.Random(0)
    for index in drawn:
        success = rng.random() < 0.5
        outcomes = [{"success": success, "score": float(success)}, {"success": True, "score": 1.0}]
        mixed.record(
            {"task": {"task_id": mixed.name(index)}, "group_id": "g", "outcome": outcome} for outcome in outcomes
        )
    lap("s curriculum")
    mixed.draw()
    lap("s next epoch")
    state = json.loads(json.dumps(mixed.sampler.state_dict()))
    lap("s checkpoint")
    mixed.sampler.load_state_dict(state)
    lap("s checkpoint taken up")
    return out


def tasks_of(options: argparse.Namespace) -> list[Task]:
    """Return the tasks of the run without its journal."""
    check = {
        "changes": [{"path": "note/n2", "before": ["soap"], "after": ["tea"]}],
        "rest": "0" * 32,
        "answer": None,
        "must_finish": True,
    }
    texts = queries(options.tasks, seed=2)
    return [
        task_of(f"note_add.k{i // 3}.0#{i % 3}", text, ["note.tag n2 fun", "done"], dict(check))
        for i, text in enumerate(texts)
    ]


PARTS: dict[str, Work] = {
    "journal written": write_journal,
    "journal opened": open_journal,
    "started again": start_again,
    "known queries": known_queries,
    "stats": report,
    "task file written": write_file,
    "task file read": read_file,
    "epochs": epochs,
}


def measured(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Do one part and return what it took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    found = PARTS[name](options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = {
        "wall s": time.perf_counter() - began,
        "CPU s": time.process_time() - cpu,
        "peak MB": (peak - before) / 1024,
    }
    return taken | found


def main() -> None:
    """Run the parts and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=12, help="of an exploration")
    parser.add_argument("--chars", type=int, default=1_200, help="of an observation")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="which; the journal must have been written"
    )
    parser.add_argument("--folder", type=Path, help="work in this folder and keep it")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(measured(options.part, options)))
        return
    figures = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.parts:
            command = [
                sys.executable,
                __file__,
                f"--tasks={options.tasks}",
                f"--steps={options.steps}",
                f"--chars={options.chars}",
            ]
            done = subprocess.run(
                [*command, f"--folder={folder}", f"--part={name}"], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
            figures[name] = json.loads(done.stdout.splitlines()[-1])
            shown = ", ".join(f"{key} {value:,.4g}" for key, value in figures[name].items())
            print(f"{name:18} {shown}", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"tasks": options.tasks, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()

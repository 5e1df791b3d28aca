"""Self-questioning from nothing, offline: how many tasks in what time, whether they hold, and what the filter lets
through.

    python benchmarks/questioning.py [--seeds 150] [--strategy random] [--resolve] [--out results.json]

Starts the environment service and the offline teacher, makes tasks of the pocket world, and then looks at them with
what the task manager does not know:

- replay: each kept task's solution in a fresh world of the environment's own code, without the service
- the environment's own generator: the query is read back into its family and slots, the family's plan for them is
    adapted to the site and
  carried out, and the end state and answer are compared with the solution's
- the teacher's record of the mistakes it made on purpose: precision and recall of verification as a filter of
    hallucinated tasks
- the judge, beside the state grader, on rollouts of kept tasks that go right and wrong in known ways (--grade)

Prints one table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The folder of this file holds a script that is named like a package.
ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

from agentevolver.llm.client import LLM  # noqa: E402
from agentevolver.llm.prompts import transcript  # noqa: E402
from agentevolver.types import Step, StopReason, Task, Trajectory  # noqa: E402
from env_service.client import AsyncEnvClient  # noqa: E402
from env_service.environments.pocket.calls import PocketCall  # noqa: E402
from env_service.environments.pocket.env import PocketEnv  # noqa: E402
from env_service.environments.pocket.families import FAMILIES, TaskDraft  # noqa: E402
from env_service.environments.pocket.quirks import adapt  # noqa: E402
from env_service.environments.pocket.tasks import open_world  # noqa: E402
from task_manager.explore import Exploration  # noqa: E402
from task_manager.graders import Graders  # noqa: E402
from task_manager.graders.registry import GraderContext, agreement_metrics  # noqa: E402
from task_manager.journal import PipelinePlan, read_journal  # noqa: E402
from task_manager.report import Funnel, ProposalRecord, proposals  # noqa: E402
from task_manager.services import running  # noqa: E402
from task_manager.settings import (  # noqa: E402
    MAX_OBSERVATION_CHARS,
    GraderSettings,
    QuestioningConfiguration,
)
from task_manager.synthetic_tasks import open_run  # noqa: E402
from task_manager.tasks import read_objectives, seed_of, solution_of  # noqa: E402

DRAWS = 20_000
Name = tuple[str, str, tuple[str, ...]]
"""What tells a proposal from others: the transcript it was made of, its query, its solution."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configuration_of(options: argparse.Namespace, folder: Path) -> QuestioningConfiguration:
    """Return the configuration of the benchmark."""
    sections = {
        "env_service": {"env_type": "pocket", "env_url": f"http://127.0.0.1:{free_port()}"},
        "data": {"val_splits": ["dev"]},
        "llm": {"teacher": {"url": f"http://127.0.0.1:{free_port()}/v1", "seed": options.seed}},
        "task_manager": {
            "n": 1,
            "max_seed_tasks": options.seeds,
            "strategy": options.strategy,
            "train_data_path": str(folder / "tasks.jsonl"),
            "verification": {"resolve": options.resolve},
        },
    }
    return QuestioningConfiguration.model_validate(sections)


async def graded_alike(configuration: QuestioningConfiguration, tasks: list[Task]) -> dict[str, float]:
    """Return how far the judge agrees with the state grader on right and wrong rollouts of some tasks."""
    GraderSettings.compare_share = 1.0  # of every rollout
    settings = GraderSettings(compare_with="llm-binary-gt-no_constraint")
    records = []
    async with LLM(configuration.llm) as llm, AsyncEnvClient(configuration.env_service.env_url) as client:
        graders = Graders(GraderContext(settings, llm))
        for number, task in enumerate(tasks):
            for name, actions in variants(task).items():
                trajectory = await rolled_out(client, task, actions, f"graded-{number}-{name}")
                try:
                    trajectory.outcome = await graders.grade(task, trajectory, client, f"graded-{number}-{name}")
                finally:
                    await client.release_instance(f"graded-{number}-{name}")
                records.append(trajectory)
    return agreement_metrics(records)


def variants(task: Task) -> dict[str, list[str]]:
    """Return ways to act on a task, right and wrong."""
    solution = solution_of(task)
    return {
        "right": solution,
        "roundabout": ["shop.orders", *solution],
        "nothing": ["done"],
        "no-last-step": [*solution[:-2], solution[-1]] if len(solution) > 1 else ["done"],
        "and-more": ["mail.send ann tea", *solution],
        "wrong-answer": [*solution[:-1], f"{solution[-1]} 99"],
    }


async def rolled_out(client: AsyncEnvClient, task: Task, actions: list[str], instance_id: str) -> Trajectory:
    """Return a rollout whose instance is still open."""
    params = {"is_open_query": True, "explore_steps": 99}
    made = await client.create_instance(task.env_type, seed_of(task), instance_id, params)
    messages: list[dict[str, Any]] = [dict(message) for message in made["state"]]
    messages[-1]["content"] = str(task.query)
    steps = []
    for index, action in enumerate(actions):
        result = await client.step(instance_id, {"role": "assistant", "content": action}, step_index=index)
        observation = result["state"][0]["content"]
        steps.append(Step(index, action, observation, 0.0, 0, 0, False, 0.0, 0.0))
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
    return Trajectory(task, "g", 0, messages, steps, StopReason.FINISHED, None)


async def question(configuration: QuestioningConfiguration) -> tuple[PipelinePlan, Funnel, float]:
    """Make the tasks; returns plan, funnel and the seconds it took."""
    settings = configuration.llm.model_copy(
        update={"ledger": configuration.task_manager.store_path / "llm_usage.sqlite"}
    )
    started = time.perf_counter()
    async with LLM(settings) as llm, open_run(configuration, llm) as run:
        await run.make_tasks()
        funnel = run.pipeline.funnel()
        spent = llm.ledger.spent()
        funnel.tokens, funnel.cost = spent.tokens, spent.cost
        return run.plan, funnel, time.perf_counter() - started


def replays(task: Task) -> bool:
    """Whether the environment's own code carries a task's solution out without a refusal, to an end, in the state that
    its check says."""
    actions = solution_of(task)
    env = PocketEnv(seed_of(task), "replay", {"is_open_query": True, "explore_steps": len(actions)})
    for action in actions:
        result = env.step({"role": "assistant", "content": action})
        if result["info"]["refused"]:
            return False
    goals = {tuple(c["path"].split("/")): c["after"] for c in task.metadata["state_check"]["changes"]}
    facts = env.get_info(params={"what": "state"})["facts"]
    return env.world.answer is not None and all(_at(facts, path) == goal for path, goal in goals.items())


def _at(facts: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


@lru_cache(maxsize=1)
def patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Return every wording of every family as a pattern with its slots as groups."""
    found = []
    for family in FAMILIES.values():
        for wording in family.wordings:
            parts, seen = [], set()
            for text in re.split(r"(\{\w+\})", wording):
                name = text[1:-1]
                is_slot = text.startswith("{")
                parts.append((f"(?P={name})" if name in seen else rf"(?P<{name}>\S+)") if is_slot else re.escape(text))
                seen |= {name} if is_slot else set()
            found.append((family.name, re.compile("".join(parts))))
    return found


def family_of(task: Task) -> str | None:
    """Return the family whose wording a query has, None if there is none."""
    return next((name for name, pattern in patterns() if pattern.fullmatch(str(task.query))), None)


def meant(task: Task) -> TaskDraft | None:
    """Return the environment's own draft for what a query says in its world; None if no wording fits, or no draw has
    its slots."""
    tables = open_world(seed_of(task)).tables
    for name, pattern in patterns():
        match = pattern.fullmatch(str(task.query))
        if match is None:
            continue
        rng = random.Random(0)
        for _ in range(DRAWS):
            draft = FAMILIES[name].make(tables, rng)
            if draft is not None and {key: str(value) for key, value in draft.slots.items()} == match.groupdict():
                return draft
    return None


def does_what_it_says(task: Task) -> bool | None:
    """Whether the solution ends as the environment's own plan for the query does; None if the environment has none for
    it."""
    draft = meant(task)
    if draft is None:
        return None
    world = open_world(seed_of(task))
    plan = (*draft.plan, PocketCall("done", () if draft.answer is None else (draft.answer,)))
    for call in adapt(plan, world.quirks, world.pin):
        world.carry_out(call)
    env = PocketEnv(seed_of(task), "own", {"is_open_query": True, "explore_steps": 99})
    for action in solution_of(task):
        env.step({"role": "assistant", "content": action})
    return world.tables.facts() == env.world.tables.facts() and (
        draft.answer is None or env.world.answer == draft.answer
    )


def filter_quality(
    records: list[ProposalRecord], explorations: Mapping[str, Any], planted: Mapping[Name, str]
) -> dict[str, float]:
    """Return precision and recall of dropping planted mistakes among verified proposals, the counts behind them, and
    recall by kind."""
    verdicts = {_name(r, explorations): r.verdict["dropped_by"] is not None for r in records if r.verdict is not None}
    dropped = {name for name, is_dropped in verdicts.items() if is_dropped}
    wrong = verdicts.keys() & planted.keys()
    both = dropped & wrong
    out = {
        "verified": float(len(verdicts)),
        "hallucinated": float(len(wrong)),
        "dropped": float(len(dropped)),
        "precision": len(both) / len(dropped) if dropped else 1.0,
        "recall": len(both) / len(wrong) if wrong else 1.0,
    }
    for kind in sorted({planted[name] for name in wrong}):
        out[f"hallucinated: {kind}"] = float(sum(planted[name] == kind for name in wrong))
        out[f"dropped: {kind}"] = float(sum(planted[name] == kind for name in both))
    return out


def _name(record: ProposalRecord, explorations: Mapping[str, Any]) -> Name:
    exploration = Exploration.from_dict(explorations[record.keys["exploration"]])
    shown = transcript(exploration.transcript, MAX_OBSERVATION_CHARS)
    from agentevolver.recipes.offline.teacher.synthesiser import digest

    return digest(shown), str(record.proposal["query"]), tuple(record.proposal["solution"])


def read_planted(path: Path) -> dict[Name, str]:
    """Return the kinds of the hallucinated tasks in the teacher's record, named as records are."""
    entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    wrong = [e for e in entries if e["task"] == "synthesiser/tasks" and "solution" in e]
    return {(e["transcript"], e["query"], tuple(e["solution"])): e["kind"] for e in wrong}


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=150, help="worlds to explore, once each")
    parser.add_argument("--seed", type=int, default=0, help="of the teacher")
    parser.add_argument("--strategy", choices=("random", "curious"), default="random")
    parser.add_argument("--resolve", action="store_true", help="let the verifier solve every task as well")
    parser.add_argument(
        "--grade", type=int, default=0, metavar="N", help="compare judge and state grader on rollouts of N kept tasks"
    )
    parser.add_argument("--out", type=Path, help="write the numbers there as JSON")
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        os.environ["TEACHER_RECORD"] = str(folder / "planted.jsonl")
        configuration = configuration_of(options, folder)
        with running(configuration, folder / "logs"):
            plan, funnel, seconds = asyncio.run(question(configuration))
            tasks = read_objectives(configuration.task_manager.train_data_path)
            alike = asyncio.run(graded_alike(configuration, tasks[: options.grade])) if options.grade else {}
        journal = read_journal(configuration.task_manager.store_path)
        quality = filter_quality(
            list(proposals(journal, plan)), journal["exploration"], read_planted(folder / "planted.jsonl")
        )
    own = [does_what_it_says(task) for task in tasks]
    checkable = [holds for holds in own if holds is not None]
    result = {
        "seconds": seconds,
        "kept": len(tasks),
        "distinct queries": len({task.query for task in tasks}),
        "replayed": sum(replays(task) for task in tasks) / len(tasks),
        "families of tasks": len({name for task in tasks if (name := family_of(task)) is not None}),
        "with a plan of the environment's own": len(checkable),
        "of these, does what it says": sum(checkable) / len(checkable) if checkable else float("nan"),
        **quality,
        **funnel.metrics(),
        **alike,
    }
    for name, value in result.items():
        print(f"{name:45} {value:12.4f}" if isinstance(value, float) else f"{name:45} {value:12}")
    for task, holds in zip(tasks, own, strict=True):
        if holds is False:
            print(f"does not do what it says: {task.task_id}  {task.query}  {solution_of(task)}")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

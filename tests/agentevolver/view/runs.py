"""The folder of a run, made up: every file that the page reads, with text in it that would like to be markup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import yaml

from agentevolver.llm.embeddings import HashingEncoder
from agentevolver.llm.store import Ledger, Usage
from agentevolver.trainer.monitor.log import Status
from agentevolver.types import Attribution, LabelStatus, Outcome, Step, StopReason, Task, Trajectory
from agentevolver.utils.files import write_jsonl
from experience_manager.experience import Category, Experience
from experience_manager.guide import Guidance, inject
from experience_manager.pool import Pool
from experience_manager.store import Store
from task_manager.journal import PipelineJournal, PipelinePlan
from task_manager.tasks import write_objectives, write_tasks

HOSTILE = '<img src=x onerror="document.title=1"><script>alert(1)</script>'
N = 4


def make_run(folder: Path, *, steps: int = 3, groups: int = 2) -> Path:
    """Write a whole run of `steps` steps, `groups` tasks a step and N rollouts a task; returns the folder."""
    folder.mkdir(parents=True)
    config = {"trainer": {"dump_samples": True}, "llm": {"budget": {"max_tokens": 1000}, "api_key": "sk-secret"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    Status(folder).set("training", step=steps, total_steps=steps)
    write_launch(folder)
    write_metrics(folder, 0, steps + 1)
    for step in range(1, steps + 1):
        records = list(make_records(step, groups))
        write_jsonl(folder / "trajectories" / f"step_{step}.jsonl", records)
        write_jsonl(
            folder / "samples" / f"step_{step}.jsonl", (sample_of(record) for record in records if record["outcome"])
        )
    write_jsonl(folder / "validation" / "step_0.jsonl", list(make_records(0, 1)))
    make_tasks(folder / "tasks")
    make_pool(folder / "experience.sqlite")
    make_ledger(folder / "llm_usage.sqlite")
    (folder / "logs").mkdir()
    (folder / "logs" / "main.log").write_text(f"\x1b[32mloading\x1b[0m\n10%\r50%\r100%\n{HOSTILE}\n")
    return folder


def write_launch(folder: Path, run_id: str = "261121-000000-abcd") -> None:
    launch = {
        "run_id": run_id,
        "started_at": "2026-11-21T00:00:00+00:00",
        "ended_at": "2026-11-21T00:10:00+00:00",
        "exit_code": 0,
    }
    (folder / "launches").mkdir(exist_ok=True)
    (folder / "launches" / f"{run_id}.json").write_text(
        json.dumps({**launch, "argv": ["--conf", HOSTILE], "hardware": {"host": "here"}})
    )


def metrics_of(step: int) -> dict[str, Any]:
    record: dict[str, Any] = {"step": step, "time": 1_795_300_000.0 + 10 * step}
    if step % 2 == 0:
        record |= {
            "val-core/pocket/reward/mean@4": round(0.4 + step / 100, 6),
            "val-core/pocket/reward/best@4/mean": 0.8,
        }
    if step > 0:
        record |= {
            "rollout/success": round(min(1.0, 0.3 + step / 50), 6),
            "rollout/reward/mean": 0.3,
            "timing_s/gen": 2.0,
            "timing_s/step": 4.0,
        }
    return record


def write_metrics(folder: Path, first: int, last: int) -> None:
    with (folder / "metrics.jsonl").open("ab") as file:
        file.writelines(orjson.dumps(metrics_of(step)) + b"\n" for step in range(first, last))


def make_records(step: int, groups: int) -> Iterator[dict[str, Any]]:
    """Rollouts of a step: one of each group is guided, one did not happen, the others differ in their outcome."""
    for group in range(groups):
        synthetic = group % 2 == 1
        metadata = {"synthetic": True} if synthetic else {}
        task = Task(
            f"note_del.k{group}.{step}",
            "pocket",
            synthetic,
            f"delete {HOSTILE}" if synthetic else None,
            metadata=metadata,
        )
        for rollout in range(N):
            yield make_record(task, f"g{step}-{group}", rollout)


def make_record(task: Task, group: str, rollout: int) -> dict[str, Any]:
    opening = [{"role": "system", "content": "site k0"}, {"role": "user", "content": f"delete the note {HOSTILE}"}]
    guidance = (
        Guidance(f"Read the doc of note.del first. {HOSTILE}", ("e1",), keep=False) if rollout == 1 else Guidance()
    )
    injection = inject(opening, guidance, "\n\nSome Related Experience to help you:<EXP>{}</EXP>\n\n")
    happened, success = rollout != 3, rollout != 2
    steps = [
        Step(0, "note.find milk", f"n3 {HOSTILE}", 0.0, 20, 4, False, 0.3, 0.1),
        Step(1, "done", "bye", 1.0, 40, 2, False, 0.2, 0.1),
    ]
    said = [
        message
        for s in steps
        for message in ({"role": "assistant", "content": s.action}, {"role": "user", "content": s.observation})
    ]
    trajectory = Trajectory(
        task,
        group,
        rollout,
        [*injection.messages, *said],
        steps if happened else [],
        StopReason.FINISHED if happened else StopReason.ENV_ERROR,
        Outcome(float(success), success) if happened else None,
        error="" if happened else "the instance is gone",
        seconds=1.5,
    )
    record = trajectory.to_dict()
    if happened:
        analyses = (f"it showed what the task needs {HOSTILE}", "it closed the task")
        record["attribution"] = Attribution(
            LabelStatus.LABELLED, (success, success), analyses, calls=1, seconds=0.2
        ).to_dict()
        sign = 1.0 if success else -1.0
        record["credit"] = {
            "advantages": [0.5 * sign, 1.25 * sign],
            "step_rewards": [-0.75 * sign, 1.25 * sign],
            "parts": {"outcome": [0.0, sign], "label": [-0.75 * sign, 0.25 * sign], "later": [1.25 * sign, 0.0]},
        }
    if (given := injection.use().to_dict()["guidance"]) is not None:
        record["guidance"] = given
    return record


def sample_of(record: dict[str, Any]) -> dict[str, Any]:
    first, second = record["credit"]["advantages"]
    return {
        "key": f"{record['trajectory_id']}_0",
        "prompts": [1, 2, 3],
        "responses": [10, 11, 12, 13, 14],
        "response_mask": [1, 1, 0, 0, 1],
        "rollout_log_probs": [-0.1, -0.2, 0.0, 0.0, -0.3],
        "old_log_probs": [-0.1, -0.2, 0.0, 0.0, -0.3],
        "advantages": [first, first, 0.0, 0.0, second],
        "step_ids": [0, 0, -1, -1, 1],
    }


def make_tasks(folder: Path) -> None:
    write_tasks(folder / "train.jsonl", [Task("note_del.k0.0", "pocket"), Task("note_del.k1.0", "pocket")])
    write_tasks(folder / "val.jsonl", [Task("buy.k0.0", "pocket")])
    target = folder / "tasks_explored.train.jsonl"
    kept = make_journal(folder / f"{target.name}.d")
    write_objectives(target, [Task.from_dict(kept)])
    made = {"plan": "p", "complete": True, "metrics": {"questioning/kept": 1.0, "questioning/tokens_per_task": 900.0}}
    (folder / "questioning.json").write_text(json.dumps(made))


def make_plan() -> PipelinePlan:
    return PipelinePlan("pocket", "profile", ("w0", "w1"), 1, 0, "a", "b", "c", "d")


def make_journal(folder: Path) -> dict[str, Any]:
    """Write a journal: one world with a task that was kept, one that was dropped, one that is not decided; one world
    failed."""
    plan = make_plan()
    task = Task(
        "w0#0", "pocket", True, f"delete {HOSTILE}", "done", "state", {"seed_task_id": "w0", "solution": ["done"]}
    ).to_dict()
    proposals = [
        {"query": f"{text} {HOSTILE}", "solution": ["note.find milk", "done"], "confidence": 0.9}
        for text in ("one", "two", "three")
    ]
    exploration = plan.exploration("w0", 0)
    synthesis = plan.synthesis(exploration)
    with PipelineJournal(folder) as journal:
        journal.put("plan", "p", plan.to_dict())
        steps = [{"phase": "breadth", "action": "note.find milk", "observation": HOSTILE}]
        journal.put("exploration", exploration, {"seed": "w0", "steps": steps})
        journal.put("synthesis", synthesis, {"proposals": proposals, "rejected": ["no JSON"]})
        verdicts = [plan.verdict(synthesis, i) for i in range(2)]
        journal.put("verdict", verdicts[0], {"dropped_by": None, "reason": "", "changes": ["note/n3 is gone"]})
        journal.put("verdict", verdicts[1], {"dropped_by": "judge", "reason": f"it is wrong {HOSTILE}", "changes": []})
        journal.put("decision", plan.decision(verdicts[0]), {"task": task, "reason": ""})
    return task


def make_pool(path: Path) -> None:
    experiences = [
        Experience(
            "a note is to be deleted",
            "Read the doc of note.del first.",
            id="e1",
            category=Category.SUCCESS,
            uses=4,
            successes=3,
        ),
        Experience(
            f"money {HOSTILE}",
            f"Log in with the pin of me.pin. {HOSTILE}",
            id="e2",
            scope="site k7",
            category=Category.FAILURE,
        ),
        Experience(
            "a meeting is to be planned",
            "List the day first.",
            id="e3",
            pinned=True,
            author="manual",
            compared=2,
            lift_sum=1.0,
        ),
    ]
    with Store(path) as store:
        Pool(store, HashingEncoder()).put(experiences)


def make_ledger(path: Path) -> None:
    ledger = Ledger(path)
    for role, used in (("explorer", Usage(3, 300, 30, 0.5)), ("judge", Usage(1, 100, 10, 1.5))):
        ledger.begin(Usage())
        ledger.settle(role, Usage(), used)
    ledger.close()

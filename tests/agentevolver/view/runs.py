"""The folder of a run, made up: every file that the page reads, with text in it that would like to be markup."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import yaml

from agentevolver.embeddings import HashingEncoder
from agentevolver.llm.store import Ledger, Usage
from agentevolver.monitor.log import Status
from agentevolver.types import Attribution, LabelStatus, Outcome, Step, StopReason, Task, Trajectory
from agentevolver.utils.files import write_json, write_jsonl
from experience_manager.experience import Category, Experience
from experience_manager.guide import Guidance, inject
from experience_manager.pool import Pool
from experience_manager.store import Store
from task_manager.journal import Journal, Plan
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


def make_plan() -> Plan:
    return Plan("pocket", "profile", ("w0", "w1"), 1, 0, "a", "b", "c", "d")


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
    with Journal(folder) as journal:
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


def proposal_record(number: int, **changes: Any) -> dict[str, Any]:
    """A record of a round's pool."""
    return {
        "task_id": f"r1.{number:04d}",
        "number": number,
        "round": 1,
        "seed": "calc.left.3.f.00017",
        "question": f"left 3 f 4 g 7 {HOSTILE}",
        "program": f"left 3 f 4 g 7 # {HOSTILE}",
        "proposer_answer": None,
        "executed": "7",
        "label": HOSTILE,
        "p_hat": 0.5,
        "vote": "7",
        "p_vote": 0.5,
        "k": 10,
        "n_answered": 9,
        "votes": [["7", 5], [HOSTILE, 4]],
        "mean_tool_calls": 2.0,
        "right": True,
        "vote_right": True,
        "proposer_ckpt": "round_1/proposer/c",
        "executor_ckpt": "base",
        "kept": True,
        "drop_reason": "",
        "drop_detail": "",
        "cluster_id": 0,
        **changes,
    }


def make_rounds(folder: Path) -> Path:
    """Write a base, a whole round and one that has begun into the folder of a run; returns it."""
    unlabelled = {"label": None, "right": None, "kept": False}
    unmeasured = {"k": 0, "p_hat": None, "mean_tool_calls": None, "vote": None, "vote_right": None, "votes": []}
    records = [
        proposal_record(1, right=False),
        proposal_record(0),
        proposal_record(2, **unlabelled, p_hat=1.0, drop_reason="too_easy", drop_detail=f"p is 1 {HOSTILE}"),
        proposal_record(3, **unlabelled, **unmeasured, question="", drop_reason="malformed"),
    ]
    write_jsonl(folder / "round_1" / "pool.jsonl", records)
    rewards = [{"step": step, "time": 1.0, "reward/score/mean": 0.5 * step - 0.25} for step in (1, 2)]
    write_jsonl(folder / "round_1" / "proposer" / "metrics.jsonl", rewards)

    def evaluated(mean: float) -> dict[str, Any]:
        dev = {"success": {"mean": mean, "se": 0.05, "tasks": 8}, "levels": {}, "calls": 2.0, "steps": 3.0}
        return {"state": "done", "seconds": 2.0, "metrics": {"dev": dev}}

    label = {"state": "done", "seconds": 1.0, "counts": {"drawn": 4, "dropped": {"too_easy": 1}}}
    solve = {"state": "done", "seconds": 3.0, "checkpoint": "round_1/solver/c"}
    rounds = [
        {"round": 0, "stages": {"evaluate": evaluated(0.25)}, "proposer": "base", "executor": "base"},
        {"round": 1, "stages": {"label": label, "solve": solve, "evaluate": evaluated(0.5)}},
        {"round": 2, "stages": {"propose": {"state": "skipped", "reason": f"proposer.by = {HOSTILE}"}}},
    ]
    best = {"round": 1, "success": 0.5, "checkpoint": "round_1/solver/c"}
    stopped = {"round": 2, "why": f"it fell {HOSTILE}"}
    content = {"schema": 1, "state": "stopped", "stopped": stopped, "best": best, "rounds": rounds}
    (folder / "coevolve.json").write_text(json.dumps(content))
    return folder


def make_self_play(folder: Path) -> Path:
    """Write ratings of self-play into the folder of a run; returns it."""
    start = {"name": "start", "folder": "/somewhere/secret", "elo": 1000.0, "games": 24}
    state = {"step": 3, "elo": 1064.4, "members": [start, start | {"name": f"step_2 {HOSTILE}", "elo": 1071.2}]}
    write_json(folder / "self_play.json", state)
    records = [orjson.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    for record in records[1:]:
        step = record["step"]
        record |= {"self_play/elo/policy": 1000.0 + 20 * step, "self_play/elo/opponent": 1000.0}
        record |= {"self_play/score": 0.5 + step / 20}
    write_jsonl(folder / "metrics.jsonl", records)
    return folder


def make_loop(folder: Path) -> Path:
    """Write a checkpoint of the closed loop and its rounds into the folder of a run; returns it."""
    example = {"task_id": "note_del.k0.3", "seed": "k0", "query": HOSTILE, "action": f"note.del x {HOSTILE}"}
    example |= {"observation": "there is no note x", "words": f"no such note {HOSTILE}"}
    seen = [{"step": step, "tool": "note.del", "kind": "wrong_argument", "example": example} for step in (2, 3)]
    state = {"signals": {"note_del.k0.3": [1.0, [1.0, 0.25]]}, "window": seen}
    for step in (2, 10):
        write_json(folder / "checkpoints" / f"global_step_{step}" / "closed_loop.json", {"pocket": state})
    told = {"name": f"note.del · {HOSTILE}", "count": 4, "seeds": ["k0"], "examples": [example]}
    rounds = [
        {"step": 2, "turn": 1, "number": 1, "weaknesses": [told], "focus": [], "failed": False},
        {"step": 4, "turn": 2, "number": 2, "weaknesses": [], "focus": [], "failed": True},
    ]
    write_json(folder / "tasks" / "rounds" / "rounds.json", {"schema": 1, "rounds": rounds})
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"env_service": {"env_type": "pocket"}}))
    return folder


def settle() -> None:
    """Let the clock of file times go on."""
    time.sleep(0.02)

"""What recipes write into the folder of a run, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson

from agentevolver.utils.files import write_json, write_jsonl
from tests.agentevolver.view.runs import HOSTILE


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
        {"round": 2, "stages": {"propose": {"state": "skipped", "reason": f"proposer.trained = false {HOSTILE}"}}},
    ]
    best = {"round": 1, "success": 0.5, "checkpoint": "round_1/solver/c"}
    content = {"schema": 1, "state": "running", "best": best, "rounds": rounds}
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

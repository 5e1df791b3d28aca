"""Values of fields and parameters that mean something to each of the four servers, for requests that are to be
answered."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from agentevolver.llm import prompts
from agentevolver.recipes.offline.teacher.service import HANDLERS
from tests.agentevolver.view.runs import make_plan


def environment_values(open_ids: list[str]) -> dict[str, Any]:
    """Values for the environment service with PocketWorld; `open_ids` lists what is open."""

    def step(rng: random.Random) -> dict[str, Any]:
        actions = ("note.find milk", "doc note.del", "done", "nonsense", "\x00", "<tool_call>{}</tool_call>")
        return {"role": "assistant", "content": rng.choice(actions)}

    def some_id(rng: random.Random) -> str:
        return rng.choice(open_ids) if open_ids else "nobody"

    def many(item: Callable[[random.Random], dict[str, Any]]) -> Callable[[random.Random], dict[str, Any]]:
        return lambda rng: {"requests": [item(rng) for _ in range(rng.randrange(4))]}

    tasks = ["note_del.k0.0", "note_del.k1.0", "buy.k0.0"]
    return {
        "env_type": ["pocket", None],
        "task_id": tasks,
        "/create instance_id": lambda rng: f"i{rng.randrange(10**9)}",
        "instance_id": some_id,
        "messages": step,
        "params": [None, {}, {"is_open_query": True}],
        "/get_env_profile params": [None, {"split": "train"}, {"split": "val"}],
        "step_index": [None, 0, 1],
        "/step": lambda rng: {"instance_id": some_id(rng), "messages": step(rng)},
        "/evaluate": lambda rng: {"instance_id": some_id(rng), "messages": rng.choice(({}, [], [step(rng)]))},
        "/step_many": many(lambda rng: {"instance_id": some_id(rng), "messages": step(rng)}),
        "/create_many": many(lambda rng: {"task_id": rng.choice(tasks)}),
    }


def experience_values() -> dict[str, Any]:
    """Values for the experience service."""
    opening = [{"role": "system", "content": "site k7"}, {"role": "user", "content": "delete the note milk"}]
    said = [{"role": "assistant", "content": "note.del n3"}, {"role": "user", "content": "ok"}]

    def memory(rng: random.Random) -> dict[str, Any]:
        return {
            "memory_id": f"m{rng.randrange(50)}",
            "when_to_use": f"case {rng.randrange(20)}",
            "content": "read the doc",
            "metadata": {},
        }

    return {
        "workspace_id": ["", "default", "other"],
        "src_workspace_id": ["default", "other"],
        "trajectories": lambda rng: [
            {"messages": [*opening, *said], "score": rng.random(), "task_id": f"t{rng.randrange(5)}"}
        ],
        "query": ["delete a note", json.dumps(opening)],
        "messages": [opening, []],
        "/retrieve_task_memory metadata": [{}, {"task_id": "t1", "validation": True}],
        "top_k": [1, 3, 1000],
        "memory_dicts": lambda rng: [memory(rng) for _ in range(rng.randrange(3))],
        "freq_threshold": [0, 5],
        "utility_threshold": [0, 0.5, 2],
        "/vector_store": lambda rng: {
            "action": rng.choice(("list", "delete", "delete_ids", "dump", "load", "copy")),
            "workspace_id": rng.choice(("", "other")),
            "src_workspace_id": "default",
            "memory_ids": ["m1"],
            "path": rng.choice(("", "sub")),
        },
    }


def page_values() -> dict[str, Any]:
    """Values for the page of `runs.make_run` with `make_rounds`."""
    return {
        "/api/logs/{name} name": ["main.log"],
        "/api/metrics name": ["rollout/success", "val-core/*"],
        "offset": [0, 1, 100],
        "limit": [1, 50, 500],
        "generation": [0, 1],
        "since": [0, 1],
        "kind": ["training", "validation"],
        "/api/trajectories/{kind}/{step}/{index} kind": ["training"],
        "step": [1, 2, 3],
        "/api/rounds/{number}/records number": [1, 2],
        "reason": ["", "malformed"],
        "index": [0, 1],
        "outcome": ["", "success", "failure"],
        "origin": ["", "synthetic"],
        "guidance": ["", "guided"],
        "text": ["", "note", "<img"],
        "before": ["", "3:1"],
        "journal": ["tasks_explored.train.jsonl.d"],
        "run": [make_plan().run],
        "fate": ["", "kept"],
        "workspace": ["default"],
        "by_meaning": ["true", "false"],
        "category": ["", "success", "pinned"],
        "sort": ["newest", "uses", "lift"],
        "identifier": ["e1", "e2", "e3"],
        "/api/experience/{workspace}/{identifier}": [
            {"pinned": True},
            {"pinned": False},
            {"content": "read the doc"},
            {"scope": "site k7"},
        ],
    }


def teacher_values() -> dict[str, Any]:
    """Values for the teacher: a prompt of every kind that it knows, and the answers to garbage in their sections."""
    milk = [(0, "note.find milk", "milk n3 home"), (1, "note.del n3 yes", "ok"), (2, "done", "bye")]
    grade = prompts.messages(
        "judge/grade",
        "Grade.",
        {"opening": "site k3", "task": "delete note milk", "transcript": prompts.transcript(milk)},
    )

    def any_prompt(rng: random.Random) -> list[dict[str, str]]:
        texts = (
            "delete note milk",
            prompts.transcript(milk),
            "1",
            "step 0\naction: \nobservation: ",
            "[0]\nwhen_to_use: a\ncontent: b",
            "\x00",
            "9" * 5000,
        )
        sections = "\n\n".join(f"<{name}>\n{rng.choice(texts)}\n</{name}>" for name in prompts.SECTIONS)
        return [
            {"role": "system", "content": f"role: {rng.choice(sorted(HANDLERS))}"},
            {"role": "user", "content": sections},
        ]

    def body(rng: random.Random) -> dict[str, Any]:
        asked = grade if rng.random() < 0.6 else any_prompt(rng)
        return {
            "model": "teacher",
            "messages": asked,
            "temperature": rng.choice((0, 0.7)),
            "seed": rng.choice((None, 1)),
        }

    return {"/v1/chat/completions": body}

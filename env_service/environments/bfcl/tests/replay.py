"""Helpers: reference calls as a model would write them, and whole episodes driven with given calls."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

from env_service.base import Message, StepResult
from env_service.environments.bfcl.calls import BfclCall, parse_reference
from env_service.environments.bfcl.env import BfclEnv
from env_service.environments.bfcl.package import BfclTask, load_package

Turns = list[list[BfclCall]]
ANSWER: Message = {"role": "assistant", "content": "That is all I can do."}


def all_task_ids() -> list[str]:
    return list(load_package().tasks)


def named(call: BfclCall, task: BfclTask) -> BfclCall:
    """Return the call with all its arguments named, as JSON wants them."""
    for class_name in task.involved_classes:
        method = getattr(load_package().classes[class_name], call.name, None)
        if method is not None:
            bound = inspect.signature(method).bind(None, *call.positional, **call.arguments)
            return BfclCall(call.name, {key: value for key, value in bound.arguments.items() if key != "self"})
    raise AssertionError(f"{task.task_id}: no API has a method {call.name}")


def reference_turns(task_id: str) -> Turns:
    task = load_package().tasks[task_id]
    return [[named(parse_reference(text), task) for text in turn] for turn in task.truth]


def as_text(calls: Sequence[BfclCall]) -> Message:
    blocks = [
        f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': dict(call.arguments)})}\n</tool_call>"
        for call in calls
    ]
    return {"role": "assistant", "content": "\n".join(blocks)}


def play(
    turns: Turns, task_id: str, params: dict[str, Any] | None = None, one_call_per_message: bool = True
) -> tuple[BfclEnv, StepResult]:
    """Play an episode to its end (or to the step limit) and return the instance and the last answer."""
    env = BfclEnv(task_id, "test", params)
    env.get_init_state()
    answer: StepResult = {"state": [], "reward": 0.0, "is_terminated": False, "info": {}}
    for calls in turns:
        for group in [[call] for call in calls] if one_call_per_message else [calls] if calls else []:
            answer = env.step(as_text(group))
            if answer["is_terminated"]:
                return env, answer
        answer = env.step(ANSWER)
    return env, answer

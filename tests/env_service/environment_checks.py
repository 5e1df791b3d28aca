"""What the tests of every environment check: the contract, the profile and the names of its splits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from calling import calling

from env_service.base import BaseEnv, Message
from env_service.contract import list_tasks, with_tools
from env_service.registry import known_environments, load
from task_manager.actions import format_of
from task_manager.profile import shipped_profile

ROOT = Path(__file__).parents[2]


def keeps_the_contract(name: str, **variables: str) -> None:
    """Run `python -m env_service check NAME`, and load the profile and the action format."""
    assert load(known_environments()[name]).isolation in ("shared", "isolated")
    assert shipped_profile(name).entities and format_of(name).env_type == name
    environ = {variable: text for variable, text in os.environ.items() if not variable.startswith("ENV_")}
    command = [sys.executable, "-m", "env_service", "check", name]
    done = subprocess.run(
        command, cwd=ROOT, env=environ | variables, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{name}: keeps the contract\n") and "BROKEN" not in done.stdout


def understands_the_usual_splits(name: str) -> None:
    """dev, val and validation are one split, apart from test; another name is refused."""
    found = load(known_environments()[name])
    dev, val, test = (list_tasks(found, split, None) for split in ("dev", "val", "test"))
    assert dev == val == list_tasks(found, "validation", None) and dev and not set(dev) & set(test)
    with pytest.raises(ValueError, match=r"'tset'.*train.*(dev|val).*test"):
        list_tasks(found, "tset", None)


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


UNSURE = said("I am not sure yet.")
_SHOWN = re.compile(r"like this:\n(```.*?```|<tool_call>.*?</tool_call>|[^\n]+)", re.DOTALL)


def shows_a_right_call(
    name: str | type[BaseEnv],
    params: dict[str, Any],
    *,
    wrong: Sequence[Message] = (UNSURE,),
    takes: Callable[[dict[str, Any]], bool] = lambda info: not info["refused"],
) -> None:
    """The opening and the observation after each wrong reply show one call, which the environment takes."""
    env_class = load(known_environments()[name]) if isinstance(name, str) else name
    task = list_tasks(env_class, "dev", None)[0]

    def played(reply: Message) -> dict[str, Any]:
        env = env_class(task, "one", params)
        try:
            env.get_init_state()
            return dict(env.step(reply))
        finally:
            env.close()

    env = env_class(task, "one", params)
    opened = with_tools(env, dict(env.get_init_state()))
    env.close()
    tools = [tool["function"]["name"] for tool in opened["info"].get("tools", ())]
    for shown in [opened["state"][0]["content"], *(played(reply)["state"][0]["content"] for reply in wrong)]:
        reply = _call_in(shown, tools) if params.get("native_tools") else _text_in(shown)
        assert takes(played(reply)["info"]), (shown, reply)


def _text_in(shown: str) -> Message:
    (reply,) = _SHOWN.findall(shown)
    return said(reply)


def _call_in(shown: str, tools: Sequence[str]) -> Message:
    before, brace, after = shown.partition("{")
    arguments, _ = json.JSONDecoder().raw_decode(brace + after)
    named = {name: [found.start() for found in re.finditer(rf"\b{name}\b", before)] for name in tools}
    name = max((name for name in tools if named[name]), key=lambda name: named[name][-1])
    return calling((name, json.dumps(arguments)))

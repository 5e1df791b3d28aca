"""Feedback levels say more of a refusal, and nothing more of what worked."""

from __future__ import annotations

import pytest

from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.quirks import quirks_of
from env_service.environments.pocket.tasks import task_ids
from env_service.feedback import HINT

TASK = next(task for task in task_ids("train", 400) if quirks_of(int(task.split(".")[1][1:])).guard == "doc")


def said(level: str | None, text: str) -> str:
    env = PocketEnv(TASK, "x", {"slack": 5, **({"feedback": level} if level else {})})
    return env.step({"role": "assistant", "content": text})["state"][0]["content"]


def test_each_level_says_more_and_nothing_more_of_what_worked() -> None:
    plain = said(None, "note.del n3")
    assert plain == said("plain", "note.del n3") == "err read doc note.del first"
    schema = said("schema", "note.del n3")
    assert schema == f"{plain}{HINT}use note.del ID"
    assert said("recovery", "note.del n3") == f"{schema} , call doc note.del first"
    assert said("recovery", "doc") == said("plain", "doc")
    assert said("recovery", "").endswith("call doc to see the apps and their tools")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="feedback='loud'"):
        said("loud", "doc")

"""Feedback levels say more of a refusal."""

from __future__ import annotations

import pytest

from env_service.environments.bfcl.action_format import BfclFormat
from env_service.environments.bfcl.env import BfclEnv
from env_service.feedback import HINT

CALL = '<tool_call>{"name": "cd", "arguments": {}}</tool_call>'


def said(level: str | None) -> str:
    env = BfclEnv("multi_turn_base_0", "x", {"feedback": level} if level else None)
    return env.step({"role": "assistant", "content": CALL})["state"][0]["content"]


@pytest.mark.thorough
def test_each_level_says_more() -> None:
    plain, schema, recovery = map(said, ("plain", "schema", "recovery"))
    assert said(None) == plain and HINT not in plain
    assert '"parameters"' in schema and "correct the arguments" not in schema
    assert "correct the arguments" in recovery
    with pytest.raises(ValueError, match="feedback='loud'"):
        said("loud")


def test_what_is_wrong_is_read_from_the_answer() -> None:
    fmt = BfclFormat("bfcl")

    def kind(text: str) -> str | None:
        found = fmt.fault(CALL, f"<tool_response>\n{text}\n</tool_response>")
        return found and found[0]

    assert kind("Malformed tool call: a call is an object. Nothing was executed for it.") == "malformed"
    assert kind("Error during execution: cd() missing 1 required positional argument: 'folder'") == "wrong_argument"
    assert kind('{"error": "cd: not allowed"}') == "refused"
    assert kind('{"current_working_directory": "error"}') is None

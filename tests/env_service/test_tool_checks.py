from __future__ import annotations

from typing import Any, ClassVar

import pytest
from test_checker import Telling

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.checker import LocalProbe, run_checks
from env_service.tool_calls import ToolCall, answer_to, structured_calls


class Tools(Telling):
    """A counter whose one tool adds a digit."""

    native_tools: ClassVar[bool] = True
    schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"digit": {"type": "integer", "minimum": 2}},
        "required": ["digit"],
    }

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        return super().get_init_state({key: value for key, value in (params or {}).items() if key != "native_tools"})

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "add", "parameters": self.schema}}]

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        if not self.params.get("native_tools"):
            return super().step(action, params)
        calls = structured_calls(action)
        result = super().step({"role": "assistant", "content": self.added(calls)}, params)
        state = [answer_to(call, str(self.total)) for call in calls] or result["state"]
        return {**result, "state": state}

    def added(self, calls: Any) -> str:
        """What the calls add, as Telling reads it; "no" if one of them is wrong."""
        digits = [call.arguments.get("digit") for call in calls if isinstance(call, ToolCall) and call.name == "add"]
        return str(sum(digits)) if calls and all(isinstance(digit, int) for digit in digits) else "no"


class NoSchema(Tools):
    schema: ClassVar[dict[str, Any]] = {"type": "objekt"}


class Prose(Tools):
    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        opening = super().get_init_state(params)
        opening["state"][0]["content"] += " Write <tool_call>...</tool_call>."
        return opening


class OnlyTheFirst(Tools):
    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        result = super().step(action, params)
        return {**result, "state": result["state"][:1]}


class Strict(Tools):
    def added(self, calls: Any) -> str:
        if any(call.name != "add" for call in calls):
            raise ValueError("no such tool")
        return super().added(calls)


BROKEN = [
    (NoSchema, "info.tools of an opening", "no JSON schema"),
    (Prose, "info.tools of an opening", "how to write a call"),
    (OnlyTheFirst, "each call of a message", "were answered by"),
    (Strict, "a call of no tool", "no such tool"),
]


def findings(env_class: type[BaseEnv]) -> dict[str, str]:
    found = run_checks(LocalProbe(env_class), action="1")
    return {" ".join(finding.promise.split()): finding.problem for finding in found}


def test_a_world_with_sound_tools_has_no_findings() -> None:
    assert not [problem for problem in findings(Tools).values() if problem]


@pytest.mark.parametrize(("env_class", "promise", "problem"), BROKEN)
def test_each_kind_of_defect_is_found(env_class: type[BaseEnv], promise: str, problem: str) -> None:
    (found,) = [text for said, text in findings(env_class).items() if promise in said]
    assert problem in found

"""Running a proposal's program: what counts as its answer, and that a failing service is no verdict on a program."""

from typing import Any

import pytest

from agentevolver.recipes.agent0.execute import TRIES, execute
from agentevolver.recipes.agent0.types import DroppedProposal, ProposedTask
from env_service.client import EnvCrashed, EnvRequestError, EnvTimeout, EnvUnavailable
from env_service.environments.python_tool.prompts import NO_OUTPUT
from env_service.tool_calls import ToolCall, structured_calls


class ScriptedWorld:
    """Answers steps in order; what is an exception is raised. Keeps what it was asked."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.made: list[tuple[str, str, dict[str, Any]]] = []
        self.actions: list[dict[str, Any]] = []
        self.open: set[str] = set()

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = None, params: dict[str, Any] | None = None
    ) -> Any:
        assert instance_id is not None and instance_id not in {name for _, name, _ in self.made}
        self.made.append((env_type, instance_id, params or {}))
        self.open.add(instance_id)
        return {"state": [], "info": {}}

    async def step(
        self, instance_id: str, action: Any, params: dict[str, Any] | None = None, step_index: int | None = None
    ) -> Any:
        assert instance_id in self.open and step_index == 0
        self.actions.append(action)
        said = self.said.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    async def release_instance(self, instance_id: str) -> bool:
        self.open.remove(instance_id)
        return True


def says(text: str, **info: Any) -> dict[str, Any]:
    return {"state": [{"role": "user", "content": text}], "reward": 0.0, "is_terminated": True, "info": info}


def proposal(program: str | None = "left 3 f 4") -> ProposedTask:
    return ProposedTask("p", "calc.left.3.f.1", "left 3 f 4", program)


async def test_a_program_is_run_twice_each_time_in_a_fresh_instance() -> None:
    world = ScriptedWorld(says("7"), says("7\n"))
    assert await execute(world, "calc", proposal()) == "7"
    assert [action["content"] for action in world.actions] == ["run left 3 f 4"] * 2
    assert [(name, params) for name, _, params in world.made] == [("calc", {"reference": True})] * 2
    assert not world.open


async def test_code_goes_to_python_as_a_call_that_no_fence_in_it_can_end() -> None:
    code = 'print("```")\nprint(6 * 7)'
    world = ScriptedWorld(says("```\n42\n", status="ok"), says("```\n42\n", status="ok"))
    assert await execute(world, "python", proposal(code)) == "42"
    assert structured_calls(world.actions[0]) == [ToolCall("python", {"code": code}, "1")]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([says("err 9 is no operator", refused=True)], "unexecutable"),
        ([says("err what is this")], "unexecutable"),
        ([says("NameError: x", status="error", refused=True)], "unexecutable"),
        ([says("The code was stopped", status="timeout", refused=True)], "timeout"),
        ([says(NO_OUTPUT, status="ok")], "unexecutable"),
        ([says("7" * 2001, status="ok")], "unexecutable"),
        ([says("7"), says("8")], "unequal"),
        ([says("7"), says("err", refused=True)], "unexecutable"),
        ([EnvTimeout("too slow")], "timeout"),
        ([EnvRequestError("a step that is no step")], "unexecutable"),
    ],
)
async def test_what_has_no_answer_is_dropped_with_a_reason(said: list[Any], reason: str) -> None:
    world = ScriptedWorld(*said)
    found = await execute(world, "python", proposal())
    assert isinstance(found, DroppedProposal) and found.reason == reason
    assert not world.open and not world.said


async def test_no_program_is_run_where_there_is_none() -> None:
    world = ScriptedWorld()
    for nothing in (None, ""):
        found = await execute(world, "calc", proposal(nothing))
        assert isinstance(found, DroppedProposal) and found.reason == "unexecutable"
    assert not world.made


@pytest.mark.parametrize("said", [[EnvUnavailable("gone")], [EnvCrashed("died")] * TRIES])
async def test_a_service_that_fails_says_nothing_of_the_program(said: list[Exception]) -> None:
    world = ScriptedWorld(says("7"), *said)
    with pytest.raises(type(said[0])):
        await execute(world, "calc", proposal())
    assert not world.open and not world.said


LOST = says("The interpreter died", status="died", refused=True)


async def test_a_run_that_was_lost_is_made_again_and_one_that_is_lost_always_is_the_programs_doing() -> None:
    world = ScriptedWorld(LOST, EnvCrashed("killed"), says("7", status="ok"), LOST, says("7", status="ok"))
    assert await execute(world, "python", proposal()) == "7"
    assert not world.open and not world.said
    world = ScriptedWorld(*[LOST] * TRIES)
    found = await execute(world, "python", proposal())
    assert isinstance(found, DroppedProposal) and found.reason == "unexecutable" and not world.said

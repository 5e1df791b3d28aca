"""Native tools through the service: asked for at create, told in `info`, called with real replies, refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from calling import answers, calling
from counter_envs import ToolCounter
from local_hosts import Http, serving

from env_service.checker import Failed, LocalProbe
from env_service.contract import ContractError, checked_tools

NATIVE = {"native_tools": True}


def adding(*numbers: int) -> dict[str, Any]:
    return calling(*(("add", {"number": number}) for number in numbers))


def tool(name: Any = "add", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


@pytest.mark.service
async def test_a_reply_of_the_sdk_is_a_step_over_http_and_is_answered_call_by_call() -> None:
    async with serving({"tools": "counter_envs:ToolCounter"}) as running, Http(running.url) as http:
        status, created, _ = await http.post("/create", {"task_id": "t1", "instance_id": "a", "params": NATIVE})
        assert status == 200
        info = created["data"]["info"]
        assert [tool["function"]["name"] for tool in info["tools"]] == ["add"] and info["parallel_calls"] is False
        status, reply, _ = await http.post("/step", {"instance_id": "a", "messages": adding(2, 3, 1)})
        assert status == 200 and answers(reply["data"]) == ["2", "5", "6"]
        assert [tool["function"]["name"] for tool in reply["data"]["info"]["tools"]] == ["add", "subtract"]
        refusal = {"role": "assistant", "content": None, "tool_calls": None, "refusal": "0"}
        assert (await http.post("/step", {"instance_id": "a", "messages": refusal}))[0] == 200


@pytest.mark.service
async def test_a_world_without_native_tools_says_so_and_still_takes_the_reply() -> None:
    async with serving() as running, Http(running.url) as http:
        status, reply, _ = await http.post("/create", {"task_id": "t1", "params": NATIVE})
        assert (status, reply["code"]) == (400, "bad_request") and "Counter has no native tools" in reply["detail"]
        assert not running.service.instances
        assert (await http.post("/create", {"task_id": "t1", "params": {"native_tools": False}}))[0] == 200
        await http.post("/create", {"task_id": "t1", "instance_id": "a"})
        status, reply, _ = await http.post("/step", {"instance_id": "a", "messages": adding(1)})
        assert (status, reply["code"]) == (400, "bad_request") and "invalid literal" in reply["detail"]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ({}, "a list of tools"),
        (["add"], "tools like"),
        ([tool(3)], "tools like"),
        ([tool("x" * 65)], "letters, digits"),
        ([tool(), tool()], "each once"),
        ([tool(parameters=[])], "a JSON schema"),
    ],
)
def test_tools_that_no_chat_api_takes_are_the_environments_failure(
    tools: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ContractError, match=problem):
        checked_tools(tools)
    monkeypatch.setattr(ToolCounter, "tools", lambda self, params=None: tools)
    with pytest.raises(Failed, match=problem):
        LocalProbe(ToolCounter).create("t1", NATIVE)

"""Native tools through the service: asked for at create, told in `info`, called with real replies, refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from counter_envs import Counter, ToolCounter
from local_hosts import Http, serving
from openai.types.chat import ChatCompletionMessage

from env_service.checker import Failed, LocalProbe, ProbeRefused
from env_service.contract import ContractError, checked_class, checked_tools

NATIVE = {"native_tools": True}


def calling(*numbers: Any) -> dict[str, Any]:
    """A reply as OpenAI's SDK gives it, dumped as it is."""
    calls = [
        {"id": f"call_{place}", "type": "function", "function": {"name": "add", "arguments": f'{{"number": {number}}}'}}
        for place, number in enumerate(numbers)
    ]
    return ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": calls}
    ).model_dump()


@pytest.mark.service
async def test_a_reply_of_the_sdk_is_a_step_over_http_and_is_answered_call_by_call() -> None:
    async with serving({"tools": "counter_envs:ToolCounter"}) as running, Http(running.url) as http:
        status, created, _ = await http.post("/create", {"task_id": "t1", "instance_id": "a", "params": NATIVE})
        assert status == 200
        info = created["data"]["info"]
        assert [tool["function"]["name"] for tool in info["tools"]] == ["add"] and info["parallel_calls"] is False
        for dumped in (calling(2, 3), {key: value for key, value in calling(1).items() if value is not None}):
            status, reply, _ = await http.post("/step", {"instance_id": "a", "messages": dumped})
            assert status == 200, reply
            state = reply["data"]["state"]
            assert [(m["role"], m["tool_call_id"], m["name"]) for m in state] == [
                ("tool", f"call_{place}", "add") for place in range(len(state))
            ]
        assert [m["content"] for m in state] == ["6"]
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
        status, reply, _ = await http.post("/step", {"instance_id": "a", "messages": calling(1)})
        assert (status, reply["code"]) == (400, "bad_request") and "invalid literal" in reply["detail"]


def test_without_the_parameter_nothing_is_told() -> None:
    assert LocalProbe(ToolCounter).create("t1", {})[1]["info"].keys() == {"instance_id", "task_id"}


def tool(name: Any = "add", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ({}, "a list of tools"),
        (["add"], "tools like"),
        ([{"function": {"name": "add"}}], "tools like"),
        ([tool(3)], "tools like"),
        ([tool("note.find")], "letters, digits"),
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


def test_tools_that_change_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = LocalProbe(ToolCounter)
    name, _ = probe.create("t1", NATIVE)
    monkeypatch.setattr(ToolCounter, "tools", lambda self, params=None: ["subtract"])
    with pytest.raises(Failed, match="tools like"):
        probe.step(name, calling(1))


def test_tools_are_those_that_get_info_tells_unless_the_class_says_otherwise() -> None:
    class Told(Counter):
        def get_info(self, messages: Any = None, params: Any = None) -> Any:
            return {"tools": [tool()]}

    class Silent(Counter):
        def get_info(self, messages: Any = None, params: Any = None) -> Any:
            raise ValueError(f"what is {params}?")

    assert Told("t1", "a").tools() == [tool()]
    assert Silent("t1", "a").tools() == []


def test_a_probe_in_this_process_takes_what_the_service_takes_and_refuses_what_it_refuses() -> None:
    probe = LocalProbe(ToolCounter)
    name, _ = probe.create("t1", NATIVE)
    assert probe.step(name, calling(4))["state"][0]["content"] == "4"
    with pytest.raises(ProbeRefused, match="one message"):
        probe.step(name, {"role": "assistant"})


def test_a_flag_that_is_none_is_named() -> None:
    class Unsure(Counter):
        native_tools = "yes"  # type: ignore[assignment]

    with pytest.raises(ContractError, match="native_tools='yes'"):
        checked_class(Unsure, "mine:Unsure")

"""Contract checks of an environment's results, made next to the environment, before they travel.

A broken contract (`base.py`) is a failure: `ContractError` names the method, the value and the rule. Nothing is
repaired silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentevolver.utils.numbers import number, plain, score
from env_service.base import BaseEnv

ROLES = frozenset({"system", "user", "assistant", "tool"})
# Function names that chat APIs allow.
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ContractError(Exception):
    """The environment returned something that the contract does not allow."""


def shorten(value: Any, limit: int = 120) -> str:
    """Return a bounded repr for an error message; never raises."""
    try:
        text = repr(value)
    except Exception as error:  # a foreign __repr__ may raise anything; the message must still be built
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _fail(method: str, rule: str, value: Any) -> ContractError:
    return ContractError(f"`{method}` must return {rule}, got {shorten(value)}")


def _number(method: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or (found := number(value)) is None:
        raise _fail(method, f"a finite number as {name}", value)
    return float(found)


def _messages(method: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _fail(method, "a list of messages as `state`", value)
    for message in value:
        if (
            not isinstance(message, dict)
            or message.get("role") not in ROLES
            or not isinstance(message.get("content"), str)
        ):
            raise _fail(method, f"messages with a role of {sorted(ROLES)} and a text as `content`", message)
    return value


def _info(method: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _fail(method, "a dict with text keys as `info`", value)
    return value


def checked_action(value: Any) -> dict[str, Any]:
    """Return an assistant message as environments take it, from a reply of OpenAI's chat API.

    `content` becomes "" if it is null or missing beside `tool_calls`, or the refusal if there is only that.

    Raises:
        ValueError: not a message, `content` is not a text, or `tool_calls` is not a list.
    """
    calls = value.get("tool_calls") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not ("content" in value or calls or value.get("refusal")):
        raise ValueError("expected one message: {role: 'assistant', content: text, tool_calls?}")
    if calls is not None and not isinstance(calls, list):
        raise ValueError(f"`tool_calls` of a message is a list of calls, or null; got {shorten(calls)}")
    content = value.get("content")
    if content is None:
        content = value.get("refusal") or ""
    if not isinstance(content, str):
        raise ValueError(f"`content` of a message is text, or null; got {shorten(content)}")
    return {"role": "assistant", **value, "content": content}


def checked_tools(value: Any) -> list[dict[str, Any]]:
    """Return tools that a chat API takes: functions with unique names and an object as `parameters`."""
    if not isinstance(value, list):
        raise _fail("tools", "a list of tools", value)
    names = set()
    for tool in value:
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            raise _fail("tools", "tools like {'type': 'function', 'function': {'name': ...}}", tool)
        if not TOOL_NAME.fullmatch(name) or name in names:
            raise _fail("tools", "names of at most 64 letters, digits, _ and -, each once", name)
        # Whether it is a valid JSON schema is tested by `check`, once for all instances.
        if not isinstance(function.get("parameters", {}), dict):
            raise _fail("tools", f"an object (a JSON schema) as `parameters` of {name!r}", function["parameters"])
        names.add(name)
    return value


def checked_init_state(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _fail("get_init_state", "a dict with `state` and `info`", value)
    state = _messages("get_init_state", value.get("state"))
    if not state or state[-1]["role"] != "user":
        raise _fail("get_init_state", "messages of which the last one is from the user", value)
    return {**value, "state": state, "info": _info("get_init_state", value.get("info"))}


def checked_step(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _fail("step", "a dict with `state`, `reward`, `is_terminated` and `info`", value)
    terminated = plain(value.get("is_terminated"))
    if not isinstance(terminated, bool):
        raise _fail("step", "a bool as `is_terminated`", terminated)
    return {
        **value,
        "state": _messages("step", value.get("state")),
        "reward": _number("step", "`reward`", value.get("reward")),
        "is_terminated": terminated,
        "info": _step_info(value.get("info"), is_terminated=terminated),
    }


def _step_info(value: Any, *, is_terminated: bool) -> dict[str, Any]:
    info = _info("step", value)
    info = {**info, **{name: plain(info[name]) for name in ("refused", "finished") if name in info}}
    if not isinstance(info.get("refused", False), bool | str):
        raise _fail("step", "a bool or a text as `info.refused`", info["refused"])
    if not isinstance(info.get("finished", False), bool):
        raise _fail("step", "a bool as `info.finished`", info["finished"])
    if info.get("finished") and not is_terminated:
        raise _fail("step", "`info.finished` only together with `is_terminated`", info)
    if not isinstance(info.get("answer"), str | None):
        raise _fail("step", "a text as `info.answer`, or null", info["answer"])
    return info


def has_native_tools(env: BaseEnv) -> bool:
    return env.native_tools and env.params.get("native_tools") is True


def with_tools(env: BaseEnv, state: dict[str, Any]) -> dict[str, Any]:
    """Return an init state whose `info` lists the tools if the instance has native ones."""
    if not has_native_tools(env):
        return state
    tools = checked_tools(env.tools(env.params))
    return {**state, "info": {**state["info"], "tools": tools, "parallel_calls": env.parallel_calls}}


def checked_state(value: Any) -> dict[str, Any] | None:
    """Return a valid `base.StateInfo`, or None if the value is not a state."""
    if not isinstance(value, dict) or "facts" not in value:
        return None
    method = "get_info"
    if not isinstance(value["facts"], dict):
        raise _fail(method, "an object as `facts` of the state", value["facts"])
    if not isinstance(value.get("answer"), str | None):
        raise _fail(method, "a text as `answer` of the state, or null", value["answer"])
    if not isinstance(value.get("finished"), bool | None):
        raise _fail(method, "a bool as `finished` of the state, or null", value["finished"])
    for name in ("exact", "prose"):
        if not isinstance(value.get(name, False), bool):
            raise _fail(method, f"a bool as `{name}` of the state", value[name])
    return value


NO_NATIVE_TOOLS = "has no native tools"


def created_with(env_class: type[BaseEnv], params: dict[str, Any] | None) -> dict[str, Any]:
    """Return the parameters of `create` under the class's own names: `explore_steps` is renamed, or dropped if the
    class has no limit.

    Raises:
        ValueError: `native_tools` for a class without native tools.
    """
    passed = dict(params or {})
    if not env_class.native_tools and passed.pop("native_tools", False):
        raise ValueError(f"{env_class.__name__} {NO_NATIVE_TOOLS}; create without the parameter native_tools")
    if (steps := passed.pop("explore_steps", None)) is not None and env_class.explore_steps:
        passed[env_class.explore_steps] = steps
    return passed


def checked_score(value: Any) -> float:
    if isinstance(value, bool) or (found := score(value)) is None:
        raise _fail("evaluate", "a number in 0..1 as the score", value)
    return found


def checked_tasks(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(task, str) for task in value):
        raise _fail("get_query_list", "a list of task ids (texts)", value)
    return value


def checked_class(value: Any, spec: str) -> type[BaseEnv]:
    """Return the class if it can be hosted; raises ContractError."""
    if not isinstance(value, type) or not issubclass(value, BaseEnv):
        raise ContractError(
            f"`{spec}` is {shorten(value)}; an environment must be a subclass of env_service.base.BaseEnv"
        )
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise ContractError(f"`{spec}` does not implement {', '.join(missing)}")
    if value.isolation not in ("shared", "isolated"):
        raise ContractError(f"`{spec}` declares isolation={value.isolation!r}; use 'shared' or 'isolated'")
    timeout = value.call_timeout_s
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise ContractError(f"`{spec}` declares call_timeout_s={timeout!r}; use a positive number of seconds")
    if not isinstance(value.explore_steps, str):
        raise ContractError(
            f"`{spec}` declares explore_steps={value.explore_steps!r}; use the name of a parameter of create, or ''"
        )
    for flag in ("native_tools", "parallel_calls"):
        if not isinstance(getattr(value, flag), bool):
            raise ContractError(f"`{spec}` declares {flag}={getattr(value, flag)!r}; use True or False")
    if isinstance(value.memory_mb, bool) or not isinstance(value.memory_mb, int) or value.memory_mb < 0:
        raise ContractError(f"`{spec}` declares memory_mb={value.memory_mb!r}; use a number of MiB, 0 for no limit")
    return value


# Synonymous names of splits: if an environment refuses one, the others are tried.
SAME = (("val", "dev", "validation"), ("test", "test_normal"))


def list_tasks(env_class: type[BaseEnv], split: str, params: dict[str, Any] | None) -> list[str]:
    """Return the task ids of a split, or of its other names (`val`, `dev`); raises the error for the first name."""
    try:
        return env_class.get_query_list(split, params)
    except ValueError as error:
        for other in next((names for names in SAME if split in names), ()):
            if other != split:
                try:
                    return env_class.get_query_list(other, params)
                except ValueError:
                    continue
        raise error

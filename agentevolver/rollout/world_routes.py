"""A rollout's own paths on the gateway, for agents that are programs.

    GET  /r/ID/world/messages   {"messages": [...]}
    GET  /r/ID/world/tools      {"tools": [...]}
    POST /r/ID/world/step       {"action": a text or an assistant message} -> {"text", "messages", "reward", ...}
    POST /r/ID/result           a number in 0..1, or {"score": ..., "reason": ...}
    POST /r/ID/mcp              MCP over streamable HTTP without a session: one JSON answer per request

The MCP server offers the environment's tools, or one tool `act` that takes a text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from agentevolver.rollout.agent import AgentFailed, Result, result_of
from agentevolver.rollout.gateway.request import RequestRefused
from agentevolver.rollout.gateway.server import Route
from agentevolver.rollout.world import LiveWorld, WorldAnswer
from env_service.client import EnvServiceError

# Newest first. A client that asks for an unknown version is offered the first.
MCP_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
ACT = {
    "name": "act",
    "description": "Give the environment an action, as a text, and read what it answers.",
    "inputSchema": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
}
_INVALID_REQUEST, _NO_METHOD, _INVALID_PARAMS = -32600, -32601, -32602


def routes(world: LiveWorld | None, take: Callable[[Result], None]) -> dict[str, Route]:
    """Return a rollout's routes, with those of its environment if it has one. `take` receives the posted result."""

    async def result(body: Any) -> Any:
        take(_posted(body))
        return {"ok": True}

    own: dict[str, Route] = {"POST result": result}
    if world is None:
        return own

    async def messages(_: Any) -> Any:
        return {"messages": world.messages}

    async def tools(_: Any) -> Any:
        return {"tools": world.tools}

    async def step(body: Any) -> Any:
        if not isinstance(body, dict) or "action" not in body:
            raise RequestRefused(400, 'the body must be {"action": a text or an assistant message}', param="action")
        return (await _stepped(world, body["action"])).to_dict()

    async def mcp(body: Any) -> Any:
        return await answer_mcp(world, body)

    return {
        **own,
        "GET world/messages": messages,
        "GET world/tools": tools,
        "POST world/step": step,
        "POST mcp": mcp,
    }


def _posted(body: Any) -> Result:
    given = body
    if isinstance(body, dict):
        given = Result(body.get("score"), str(body.get("reason") or ""))
    try:
        return result_of(given)
    except AgentFailed as error:
        raise RequestRefused(400, f"{error}; here: a number, or an object with score") from error


async def _stepped(world: LiveWorld, action: Any) -> WorldAnswer:
    try:
        return await world.step(action)
    except ValueError as error:
        raise RequestRefused(400, str(error), param="action") from error
    except RuntimeError as error:
        raise RequestRefused(409, str(error), "rollout_ended") from error
    except EnvServiceError as error:
        raise RequestRefused(503, f"the environment failed: {error}", "env_error") from error


# ---- MCP ----


async def answer_mcp(world: LiveWorld, body: Any) -> Any:
    """Answer one JSON-RPC message of an MCP client. A notification gets an empty 202."""
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0" or not isinstance(body.get("method"), str):
        return _error(None, _INVALID_REQUEST, "expected one JSON-RPC 2.0 request; batches are not supported")
    number, method, params = body.get("id"), body["method"], body.get("params") or {}
    if number is None:
        return web.Response(status=202)
    if method == "initialize":
        asked = params.get("protocolVersion")
        return _reply(
            number,
            {
                "protocolVersion": asked if asked in MCP_VERSIONS else MCP_VERSIONS[0],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": "agentevolver", "version": "1"},
            },
        )
    if method == "ping":
        return _reply(number, {})
    if method == "tools/list":
        return _reply(number, {"tools": [_mcp_tool(tool) for tool in world.tools] or [ACT]})
    if method == "tools/call":
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            return _error(number, _INVALID_PARAMS, "tools/call needs a name and an object of arguments")
        return await _call(world, number, name, arguments)
    return _error(number, _NO_METHOD, f"there is no method {method[:80]!r}: this server only has tools")


async def _call(world: LiveWorld, number: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    if world.tools:
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"mcp{uuid.uuid4().hex[:8]}", "type": "function", "function": function}
        action: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
    elif name == ACT["name"] and isinstance(arguments.get("action"), str):
        action = arguments["action"]
    else:
        return _error(number, _INVALID_PARAMS, "there is one tool, act, which takes a text `action`")
    try:
        answer = await _stepped(world, action)
    except RequestRefused as refused:
        return _reply(number, {"content": [{"type": "text", "text": refused.text}], "isError": True})
    return _reply(number, {"content": [{"type": "text", "text": answer.text}], "isError": False})


def _mcp_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description") or "", "inputSchema": schema}


def _reply(number: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": dict(result)}


def _error(number: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}

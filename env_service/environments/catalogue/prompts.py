"""Prompts of a catalogue's agent: the rules, the tools that can be called, and what a search found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from env_service.environments.catalogue.tools import CatalogueTool
from env_service.environments.pocket.prompts import native_schema
from env_service.environments.pocket.tools import TOOLS
from env_service.tool_calls import HOW_TO_CALL

SEARCH, LOAD = "search_tools", "load_tool"
_LONGEST_LINE = 160
_DOC = native_schema(TOOLS["doc"])["function"]
DOC = CatalogueTool("doc", "doc", "pocket", _DOC["description"], _DOC["parameters"])
"""PocketWorld's manual, which is always there."""

OPEN_QUERY = "There is no task. Find out which tools there are. Write a message without a call when you are done."

_SEARCH_RULES = """There are {count:,} tools. `search_tools` with a few words of what you need names those that fit \
best, `load_tool` with a tool's name shows how it is called; from then on you can call it. Most tools do not serve \
this request."""
_NO_SEARCH = "You can call the tools that are loaded; most of them do not serve this request."
_RULES = """Keep calling until the request is fulfilled, and do no more than it asks. A message without a call ends \
the task; if the request asks for something, end it with a line "Answer: ..."."""
_TOOLS = "# Tools\n\nYou can call these functions:\n<tools>\n{tools}\n</tools>\n\n{how}\n\n"


def system_prompt(count: int, system: str, tools: Sequence[dict[str, Any]], *, search: bool, native: bool) -> str:
    """Return the system message: loaded tools and call syntax (not for native tools), the rules, and the world's
    text."""
    listing = "" if native else _TOOLS.format(tools="\n".join(map(_line, tools)), how=HOW_TO_CALL)
    how = _SEARCH_RULES.format(count=count) if search else _NO_SEARCH
    return f"{listing}{how}\n{_RULES}\n\n{system}".rstrip()


def _line(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False)


def listed(tools: Iterable[CatalogueTool]) -> list[dict[str, str]]:
    return [{"name": tool.name, "description": tool.description[:_LONGEST_LINE]} for tool in tools]


def always_there(*, search: bool, doc: bool) -> list[dict[str, Any]]:
    found = [DOC.schema()] if doc else []
    if search:
        found.append(_one_text(SEARCH, "Find tools.", "query", "what is needed, in a few words"))
        found.append(_one_text(LOAD, "Show how a tool is called and make it callable.", "name", "the tool's name"))
    return found


def _one_text(name: str, description: str, key: str, about: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": about}},
        "required": [key],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def compact_usage(tool: CatalogueTool) -> str:
    """Return a tool's usage in the compact syntax: `use bank_pay NAME AMOUNT`."""
    return " ".join(["use", tool.name, *(name.upper() for name in tool.parameters.get("properties", {}))])


def compact_list(tools: Iterable[CatalogueTool]) -> str:
    return " , ".join(compact_usage(tool).removeprefix("use ") for tool in tools)

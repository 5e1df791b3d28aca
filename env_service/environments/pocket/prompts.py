"""Prompts of the agent before its first call.

The default is as short as it can be, since the seed policy pays for every token; `verbose` is for a real LLM, which
needs the rules. The user message holds the task and nothing else, so that an experience can be put before it and taken
away again. With native tools neither the tools nor how to call one are said here: that is the chat template's.
"""

from __future__ import annotations

import json
from typing import Any

from env_service.base import Message
from env_service.environments.pocket.calls import HOW_TO, Syntax, undotted, usage
from env_service.environments.pocket.tools import KIND_WORDS, TOOLS, WorldTool

EXPLORE_QUERY = "explore"
_EXPLORE_VERBOSE = (
    "You have no task. Find out what the tools of this site do and how they want to be called, then call done."
)


def opening(site: int, query: str | None, *, syntax: Syntax, verbose: bool, native: bool = False) -> list[Message]:
    """The two opening messages: system (names the site), user (the task, or a call to explore if there is none).

    `native` leaves out the tools and how to write a call.
    """
    system = f"site k{site}"
    if verbose:
        system = _VERBOSE_NATIVE.format(site=site) if native else _verbose_system(site, syntax)
    if query is None:
        query = _EXPLORE_VERBOSE if verbose else EXPLORE_QUERY
    return [{"role": "system", "content": system}, {"role": "user", "content": query}]


def _verbose_system(site: int, syntax: Syntax) -> str:
    tools = "\n".join(f"- {usage(t.name, t.params, syntax)}: {t.description}" for t in TOOLS.values())
    kinds = "\n".join(f"- {kind.upper()}: {text}" for kind, text in KIND_WORDS.items() if kind != "yes")
    return (
        _PLACE.format(site=site)
        + f"Each of your messages must hold exactly one tool call: {HOW_TO[syntax]}. I answer with what the tool "
        f"says.\n{_RULES}\n\nTools:\n{tools}\n\nArguments:\n{kinds}"
    )


_PLACE = (
    "You are at site k{site}, a small office with notes, a calendar, mail, a bank and a shop. You act through tools.\n"
)
_RULES = (
    "Sites differ: on some, a tool wants its manual read first, a confirmation, a login, a look-up, or its "
    "arguments in another "
    "order. An answer that begins with err changed nothing and says what to do; what holds once on a site holds "
    "for all its tasks.\n"
    "Do what the task asks and nothing else, in as few calls as possible, then call done; if the task asks a "
    "question, give done "
    "the bare answer, a word or a number."
)
_VERBOSE_NATIVE = _PLACE + _RULES


def native_schema(tool: WorldTool) -> dict[str, Any]:
    """A tool's schema with names of tools as chat APIs take them."""
    schema: dict[str, Any] = json.loads(undotted(json.dumps(tool_schema(tool))))
    return schema


def tool_schema(tool: WorldTool) -> dict[str, Any]:
    """A tool in the form OpenAI-compatible APIs take, with its arguments in the usual order."""
    properties = {
        p.key: {"type": _JSON_TYPES.get(p.kind, "string"), "description": KIND_WORDS[p.kind]} for p in tool.params
    }
    required = [p.key for p in tool.params if not p.optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


_JSON_TYPES = {"hour": "integer", "amount": "integer", "qty": "integer"}

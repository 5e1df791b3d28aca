"""Prompts of the agent before its first call.

The default is short, since the seed policy pays for every token. `verbose` is for a language model; `manual` for an
explorer, whose prompt is not trained on. The user message is the task alone, so that an experience can be put before
it. With native tools the chat template lists the tools.
"""

from __future__ import annotations

import json
from typing import Any

from env_service.base import Message
from env_service.environments.pocket.calls import HOW_TO, PocketCall, Syntax, render, undotted, usage
from env_service.environments.pocket.tools import KIND_WORDS, SHORT_KINDS, TOOLS, WorldTool

EXPLORE_QUERY = "explore"
_EXPLORE_VERBOSE = (
    "You have no task. Find out what the tools of this site do and how they want to be called, then call done."
)


def opening(
    site: int, query: str | None, *, syntax: Syntax, verbose: bool, native: bool = False, manual: bool = False
) -> list[Message]:
    """Return the two opening messages: system (names the site), user (the task, or a call to explore)."""
    system = f"site k{site}"
    if manual and verbose:
        system = _VERBOSE_NATIVE.format(site=site) if native else _manual_system(site, syntax)
    elif verbose:
        system = _short_system(site, syntax, native=native)
    if query is None:
        query = _EXPLORE_VERBOSE if verbose else EXPLORE_QUERY
    return [{"role": "system", "content": system}, {"role": "user", "content": query}]


def example(syntax: Syntax, *, native: bool) -> str:
    if native:
        name, arguments = undotted(_EXAMPLE.tool), dict(zip(_EXAMPLE_KEYS, _EXAMPLE.args, strict=True))
        return f"{name} with {json.dumps(arguments)}"
    return render(_EXAMPLE, TOOLS[_EXAMPLE.tool].params, syntax)


_EXAMPLE = PocketCall("note.find", ("milk",))
_EXAMPLE_KEYS = tuple(p.key for p in TOOLS[_EXAMPLE.tool].params)


def refusal(reason: str, syntax: Syntax, *, native: bool) -> str:
    return f"err {reason} . {_HOW[native].format(example=example(syntax, native=native))}"


def _short_system(site: int, syntax: Syntax, *, native: bool) -> str:
    how = _HOW[native].format(example=example(syntax, native=native))
    text = (
        f"You act at site k{site} through tools for notes, a calendar, mail, a bank and a shop.\n{how}\n{_SHORT_RULES}"
    )
    if native:
        return undotted(text)
    shown = str.upper if syntax == "compact" else str
    apps: dict[str, list[str]] = {}
    for tool in TOOLS.values():
        words = (f"[{shown(p.kind)}]" if p.optional else shown(p.kind) for p in tool.params)
        apps.setdefault(tool.app, []).append(" ".join((tool.name, *words)))
    tools = "\n".join(" | ".join(calls) for calls in apps.values())
    kinds = ", ".join(f"{shown(kind)} is {text}" for kind, text in SHORT_KINDS.items())
    return f"{text}\nTools, with their arguments:\n{tools}\n{kinds}."


_HOW = {
    False: "Reply with one call and nothing else, like this:\n{example}\nThe site answers it.",
    True: "Make one call a reply, for example {example}, and write nothing else: the site answers it.",
}
_SHORT_RULES = (
    "An answer that begins with err changed nothing and says what to do. Sites differ: some want another order of "
    "arguments, yes as the last one, doc with the tool's name first, a login or a shop.find first. What holds once "
    "holds for all tasks of a site.\n"
    "Do what the user asks and nothing else, in few calls. Then call done: without an answer, or with one word or "
    "number if the user asked for it."
)


def _manual_system(site: int, syntax: Syntax) -> str:
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
    schema: dict[str, Any] = json.loads(undotted(json.dumps(tool_schema(tool))))
    for key, value in schema["function"]["parameters"]["properties"].items():
        value["description"] = SHORT_KINDS.get(key, value["description"])
    return schema


def tool_schema(tool: WorldTool) -> dict[str, Any]:
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

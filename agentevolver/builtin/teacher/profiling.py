"""The synthesiser's other task: a first profile of an environment out of its tools."""

from __future__ import annotations

import json
import re
from typing import Any

from agentevolver.builtin.teacher.observed import see
from agentevolver.builtin.teacher.prompt import Draws, NotUnderstood, Prompt

_ENTITIES = {
    "note": "Note",
    "cal": "Meeting",
    "mail": "Mail",
    "bank": "Account",
    "shop": "Product",
    "me": "User",
    "doc": "Manual",
}


def profile(prompt: Prompt, draws: Draws) -> dict[str, Any]:
    """`synthesiser/profile`: the tools by the part before the dot, with what their descriptions and arguments say."""
    prompt.text("opening")
    seen = see(prompt.sections, prompt.steps() if "transcript" in prompt.sections else [])
    described = _descriptions(prompt)
    if not described:
        raise NotUnderstood("synthesiser/profile: neither <tools> nor <opening> shows a tool of the pocket world")
    entities = []
    for app, name in _ENTITIES.items():
        opts = [
            {"name": tool.rpartition(".")[2], "description": text}
            for tool, text in described.items()
            if tool.split(".")[0] == app
        ]
        if opts:
            kinds = {
                kind.lower() for tool in described if tool.split(".")[0] == app for kind in seen.tools.get(tool, ())
            }
            attrs = {kind: f"the {kind} in its calls" for kind in sorted(kinds)}
            entities.append(
                {"name": name, "description": f"What the {app} tools work on.", "attrs": attrs, "opts": opts}
            )
    return {
        "name": "Pocket",
        "background": f"Somebody at {'site ' + seen.site if seen.site else 'a site'} who works by short tool calls.",
        "entities": entities,
        "task_preference": {"num_entities": 2, "num_opts": 3, "relation_difficulty": 2},
        "rubrics": ["The goal can be told from the state of the world or from the answer."],
    }


def _descriptions(prompt: Prompt) -> dict[str, str]:
    found = dict(
        re.findall(r"^- ([a-z]+(?:\.[a-z]+)?)[^:\n]*: (.+)$", prompt.sections.get("opening", ""), re.MULTILINE)
    )
    try:
        listed = json.loads(prompt.sections.get("tools", "") or "[]")
    except ValueError:
        listed = []
    for item in listed if isinstance(listed, list) else []:
        function = item.get("function", item) if isinstance(item, dict) else {}
        if isinstance(function, dict) and function.get("name") and function["name"] != "done":
            found[str(function["name"])] = str(function.get("description", ""))
    found.pop("done", None)
    return found

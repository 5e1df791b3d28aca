"""Prompts of the agent: the tools in the wording of the Qwen chat template, the task, and the results of its calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from env_service.environments.mcp_tools.servers import McpTool
from env_service.tool_calls import HOW_TO_CALL

_NATIVE = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OTHER = re.compile(r"[^a-zA-Z0-9_-]")
_SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

{how}

# Conversation

The results of your calls come back within <tool_response></tool_response> tags. """
NATIVE_SYSTEM = """Keep calling until the user's request is fulfilled.
A message without a call is your final one and ends the task: if the user asked for something, finish it with a line \
"Answer: ..."."""
"""The system message where the chat template lists the tools and says how to call them."""

OPEN_QUERY = (
    "There is no task. Explore the functions above: find out what they do, which state they work on and what they "
    "refuse. "
    "Write a message without a call when you are done."
)


def tool_schema(tool: McpTool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
    }


def system_prompt(tools: Iterable[McpTool]) -> str:
    listed = "\n".join(json.dumps(tool_schema(tool), ensure_ascii=False) for tool in tools)
    return _SYSTEM.format(tools=listed, how=HOW_TO_CALL) + NATIVE_SYSTEM


def native_names(names: Sequence[str]) -> dict[str, str]:
    """Return each tool under a valid name of chat APIs (letters, digits, _ and -, at most 64); equal names get
    numbers."""
    kept = {name: name for name in names if _NATIVE.fullmatch(name)}
    for name in names:
        plain = short = _OTHER.sub("_", name)[:64] or "_"
        number = 2
        while kept.get(short, name) != name:
            short, number = f"{plain[:60]}_{number}", number + 1
        kept[short] = name
    return kept


def clipped(text: str, most: int) -> str:
    """Keep the first quarter and the last three quarters of `most` characters."""
    if len(text) <= most:
        return text
    head = most // 4
    return f"{text[:head]}\n... {len(text) - most} characters left out ...\n{text[head - most :]}"

"""Texts of the tau2 environment: the benchmark's prompts, and our additions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from env_service.environments.tau2.package import Domain, prompt
from env_service.tool_calls import HOW_TO_CALL

STOP = "###STOP###"
TRANSFER = "###TRANSFER###"
OUT_OF_SCOPE = "###OUT-OF-SCOPE###"
GREETING = "Hi! How can I help you today?"
"""What the benchmark's agent has said before the user's first message."""

DONE = "done"
"""The tool that ends an episode without a user."""

ENDED = "[CONVERSATION_COMPLETED]"
EMPTY = "Your message was empty. Write to the customer, or call a tool."

_TOOLS = """

# Tools

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

{how}
Results come back within <tool_response></tool_response> tags."""

_OPEN = (
    "No customer is waiting. The tools work on a running system of the domain {domain}. Find out what they do and what "
    "the system holds; answer without a call when you are done."
)


def system_prompt(domain: Domain, *, solo: bool, tools: Iterable[dict[str, Any]] | None) -> str:
    """Return the benchmark's system message; with `tools`, also the tools and the syntax of calls."""
    if solo:
        text = prompt("SYSTEM_PROMPT_SOLO").format(
            agent_instruction=prompt("AGENT_SOLO_INSTRUCTION").format(stop_function_name=DONE, stop_token=STOP),
            domain_policy=domain.solo_policy,
            ticket="(in the next message)",
        )
    else:
        text = prompt("SYSTEM_PROMPT").format(
            agent_instruction=prompt("AGENT_INSTRUCTION"), domain_policy=domain.policy
        )
    if tools is None:
        return text
    return text + _TOOLS.format(
        tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools), how=HOW_TO_CALL
    )


def open_request(domain: Domain) -> str:
    return _OPEN.format(domain=domain.name)


def done_tool() -> dict[str, Any]:
    function = {
        "name": DONE,
        "description": "Call this function when you are done with the task.",
        "parameters": {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}

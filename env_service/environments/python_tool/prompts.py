"""Prompts of the agent: the protocol, the task, and the results of its code."""

from __future__ import annotations

import json
import re
from typing import Any

from env_service.environments.python_tool.actions import (
    END_WITHOUT_CALL,
    END_WITHOUT_CODE,
    HOW_TO_CALL,
    HOW_TO_RUN,
    TOOL_NAME,
    Code,
    Style,
)
from env_service.environments.python_tool.sandbox.host import RunResult, SandboxLimits
from env_service.environments.python_tool.settings import PythonSettings

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Run Python code. Variables and imports last from call to call; the value of a last expression "
        "is shown.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to run."}},
            "required": ["code"],
        },
    },
}

_SYSTEM = """Solve the user's problem with a Python interpreter. {run}
I run it and reply with its output. {facts}

When you know the answer, end the task: {end}"""
_FACTS = """{state} The value of a last expression is shown. Each run may take {wall:g} seconds and {memory} MB. \
There is no network, no other process and no file but those you write. Beyond the standard library you can import: \
{packages}."""

_LASTING = "Variables and imports last from run to run."
_STATELESS = "Every run starts in a fresh interpreter."
OPEN_QUERY = (
    "There is no task. Explore the interpreter: find out what it offers and what can be computed with it. "
    "Finish with a message without code that holds \\boxed{done}."
)
NO_OUTPUT = "(no output: print what you want to see)"
FRESH = "A fresh interpreter was started: variables and imports of earlier runs are gone."


def system_prompt(settings: PythonSettings, *, stateful: bool, native: bool = False) -> str:
    facts = _FACTS.format(
        state=_LASTING if stateful else _STATELESS,
        wall=settings.limits.wall_s,
        memory=settings.limits.memory_mb,
        packages=", ".join(settings.packages) or "nothing",
    )
    run, end = (HOW_TO_CALL, END_WITHOUT_CALL) if native else (HOW_TO_RUN, END_WITHOUT_CODE)
    return _SYSTEM.format(run=run, facts=facts, end=end)


def tool_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(json.dumps(TOOL))
    return schema


def framed(text: str, style: Style) -> str:
    if style == "tool_call":
        return f"<tool_response>\n{text}\n</tool_response>"
    return text


def _fenced(output: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", output)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"Output:\n{fence}\n{output}\n{fence}"


def _ending(result: RunResult, limits: SandboxLimits) -> str | None:
    if result.status == "timeout":
        return f"The code was stopped after {limits.wall_s:g} seconds (time limit). {FRESH}"
    if result.status == "output_limit":
        return f"The code was stopped after {limits.flood_mb} MB of output (output limit). {FRESH}"
    if result.status == "died":
        return f"The interpreter ended while the code ran ({result.detail}). {FRESH}"
    return None


def observation(code: Code, result: RunResult, limits: SandboxLimits, *, lost_before: bool) -> str:
    """Return the text of a run's output and end.

    `lost_before`: the interpreter had died before this run, so a new one was used.
    """
    output = result.output.rstrip("\n")
    body = _fenced(output) if code.style == "block" else output
    parts = [f"The interpreter had stopped since the last run. {FRESH}"] if lost_before else []
    parts.append(body if output else NO_OUTPUT)
    if ending := _ending(result, limits):
        parts.append(ending)
    if code.further:
        parts.append(
            f"Only the first block was run; {code.further} more in the message "
            f"{'was' if code.further == 1 else 'were'} not."
        )
    return framed("\n".join(parts), code.style)

"""Prompts of the agent: the protocol, the task, and what became of its code."""

from __future__ import annotations

import json
import re
from typing import Any

from env_service.environments.python_tool.actions import TOOL_NAME, Code, Style
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

_SYSTEM = """{purpose}

To run code, write one block and end your message:
```python
print(2 ** 10)
```
or call the tool: <tool_call>{{"name": "python", "arguments": {{"code": "print(2 ** 10)"}}}}</tool_call>
The first block of a message is run, and its output comes back in the next message. {facts}

When you are done, give the answer in a message without code{ending}"""
_NATIVE_SYSTEM = """{purpose} {facts}

When you are done, give the answer in a message without a call{ending}"""
_PURPOSE = "You solve problems with the help of a Python interpreter."
_FACTS = """{state} The value of a last expression is shown.
Each run may take {wall:g} seconds and {memory} MB. There is no network, no other process and no file but those you \
write yourself.
Beyond the standard library you can import: {packages}."""
_ENDING = r""", as \boxed{answer} or as a last line "answer: ...". That ends the task."""

_LASTING = "Variables and imports last from run to run."
_STATELESS = "Every run starts in a fresh interpreter."
OPEN_QUERY = (
    "There is no task. Explore the interpreter: find out what it offers and what can be computed with it. "
    "Finish with a message without code that holds \\boxed{done}."
)
FRESH = "A fresh interpreter was started: variables and imports of earlier runs are gone."


def system_prompt(settings: PythonSettings, *, stateful: bool, native: bool = False) -> str:
    """Return the system message; `native` leaves out how to write code."""
    facts = _FACTS.format(
        state=_LASTING if stateful else _STATELESS,
        wall=settings.limits.wall_s,
        memory=settings.limits.memory_mb,
        packages=", ".join(settings.packages) or "nothing",
    )
    return (_NATIVE_SYSTEM if native else _SYSTEM).format(purpose=_PURPOSE, facts=facts, ending=_ENDING)


def tool_schema() -> dict[str, Any]:
    """Return the tool as an OpenAI-style schema, a copy."""
    schema: dict[str, Any] = json.loads(json.dumps(TOOL))
    return schema


def framed(text: str, style: Style) -> str:
    """Put an observation into the form that goes with the way the code was written."""
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
    """Return the text of what a run printed and how it ended.

    `lost_before`: the interpreter was found dead before this run, which a fresh one carried out.
    """
    output = result.output.rstrip("\n")
    body = _fenced(output) if code.style == "block" else output
    parts = [f"The interpreter had stopped since the last run. {FRESH}"] if lost_before else []
    parts.append(body if output else "(no output)")
    if ending := _ending(result, limits):
        parts.append(ending)
    if code.further:
        parts.append(
            f"Only the first block was run; {code.further} more in the message "
            f"{'was' if code.further == 1 else 'were'} not."
        )
    return framed("\n".join(parts), code.style)

"""Message logs: conversations that other programs recorded in the form of OpenAI's chat API, read as trajectories.

A line of a log is one JSON object in one of three forms:

- `{"messages": [...]}`, the form of fine-tuning files, with optional `tools`, score and names;
- `{"request": {"messages": [...]}, "response": {"choices": [...]}}`, a call as a proxy logs it;
- a trajectory's record, as a run writes them.

An assistant's message with `"weight": 0` is context, and not imitated. Reasoning stands before the text, between
`<think>` and `</think>`. Functions of the older API become tools. A field that means nothing here is refused by name;
fields beside the messages are kept in the task's metadata.

The score is `score` or `reward` (a number in 0..1) or `success` (true or false).
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from agentevolver.types import Outcome, Step, StopReason, Task, Trajectory
from agentevolver.utils.files import open_lines

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SCORES = ("score", "reward", "success")
_READ = {*_SCORES, "messages", "request", "response", "tools", "functions", "system", "metadata", "task_id", "env_type"}
_SAID = ("role", "content", "tool_calls", "tool_call_id", "name")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
# Fields that say nothing of what was said.
_LABELS = {"id", "object", "model", "created", "created_at", "timestamp", "metadata", "provider_specific_fields"}
# Environment of conversations that name none.
IMPORTED = "imported"


class LogError(ValueError):
    """A log is missing, or one of its lines is not a conversation; the message says which, and why."""


def find_logs(patterns: Iterable[str]) -> list[Path]:
    """Return the files that names and globs match, sorted, without duplicates; raises LogError if one matches
    nothing."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        # A folder's name may hold what is special in a glob.
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise LogError(f"no file of conversations matches {pattern}")
        found |= dict.fromkeys(Path(match) for match in matches)
    return list(found)


def read_logs(paths: Sequence[Path], untold_score: float | None = None) -> list[Trajectory]:
    """Return the conversations of JSONL files (`.gz` too), in order; a torn last line is skipped.

    `untold_score` is the score of conversations without one; None refuses them. Raises LogError.
    """
    found = []
    for path in paths:
        with open_lines(path) as lines:
            for number, line in enumerate(lines, 1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if not line.strip():
                    continue
                try:
                    found.append(read_line(orjson.loads(line.decode()), f"{path.stem}-{number}", untold_score))
                except ValueError as error:
                    if "unexpected end of data" in str(error) and not line.endswith(b"\n"):
                        break  # the writer was killed
                    raise LogError(f"{path}, line {number}: {error}") from error
    return found


def read_line(record: Any, name: str, untold_score: float | None = None) -> Trajectory:
    """Return one line's conversation; `name` becomes its rollout group. Raises ValueError."""
    if not isinstance(record, Mapping):
        raise ValueError("not an object")
    if "trajectory_id" in record or {"task", "stop_reason"} <= record.keys():
        return Trajectory.from_dict(record)
    messages, beside = _conversation(record)
    checked = [_message(message, place) for place, message in enumerate(messages)]
    if not any(message["role"] == "assistant" for message in checked):
        raise ValueError("no message of the assistant, so there is nothing to learn from")
    score = _score(beside, untold_score)
    named, metadata, tools = beside.get("task_id"), beside.get("metadata") or {}, _tools(beside)
    if not isinstance(metadata, Mapping):
        raise ValueError(f"`metadata` is {metadata!r}, and not an object")
    task = Task.from_dict(
        {
            "task_id": _named(checked) if named in (None, "") else str(named),
            "env_type": str(beside.get("env_type") or IMPORTED),
            "query": beside.get("query"),
            "metadata": {key: value for key, value in beside.items() if key not in _READ}
            | {**metadata, **({"tools": tools} if tools else {})},
        }
    )
    outcome = Outcome(score, score >= 1.0)
    return Trajectory(task, name, 0, checked, _steps(checked), StopReason.FINISHED, outcome)


def _conversation(record: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    request, response = record.get("request"), record.get("response")
    said: Any = record.get("messages")
    beside = dict(record)
    if isinstance(request, Mapping) and isinstance(response, Mapping):
        try:
            (choice,) = response["choices"]
            said = [*request["messages"], choice["message"]]
            beside = {**request, **{key: value for key, value in record.items() if value is not None}}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("`request` without `messages`, or `response` without one choice in `choices`") from error
    if not isinstance(said, list) or not said:
        raise ValueError("neither `messages`, nor `request` and `response`")
    system = [{"role": "system", "content": beside["system"]}] if beside.get("system") else []
    return [*system, *said], beside


def _tools(beside: Mapping[str, Any]) -> list[Any]:
    found = beside.get("tools") or beside.get("functions") or []
    if isinstance(found, str):
        with suppress(ValueError):
            found = orjson.loads(found)
    if not isinstance(found, list) or not all(isinstance(tool, Mapping) for tool in found):
        raise ValueError(f"`tools` is {str(found)[:60]!r}, and not a list of objects")
    return [{"type": "function", "function": tool} if "name" in tool else tool for tool in found]


def _message(message: Any, place: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        raise ValueError(f"message {place}: an object with a role ({', '.join(ROLES)}) was expected")
    given = {key: value for key, value in message.items() if value not in (None, "", [], {})}
    kept = {key: given.pop(key) for key in _SAID if key in given}
    role, content = kept["role"], kept.get("content") or given.pop("refusal", "")
    if isinstance(content, list):
        content = "".join(_text(part, place) for part in content)
    elif not isinstance(content, str):
        raise ValueError(f"message {place}: `content` is neither text nor a list of parts")
    if (weight := given.pop("weight", 1)) not in (0, 1):
        raise ValueError(f"message {place}: `weight` is {weight!r}, and neither 0 nor 1")
    if weight == 0:
        kept["weight"] = 0
    if role == "function":  # it answers the message before
        kept |= {"role": "tool", "tool_call_id": f"call{place - 1:05d}"}
    if role == "assistant" and "function_call" in given and "tool_calls" not in kept:
        # Mistral's templates demand ids of nine letters and digits.
        call = {"id": f"call{place:05d}", "type": "function", "function": given.pop("function_call")}
        kept["tool_calls"] = [call]
    thought = next((given[key] for key in _THOUGHTS if key in given), None)
    if role == "assistant" and isinstance(thought, str):
        given = {key: value for key, value in given.items() if key not in _THOUGHTS or value != thought}
        if thought.strip() not in content:
            content = f"<think>\n{thought.strip()}\n</think>\n\n{content}"
    if strange := sorted(given.keys() - _LABELS):
        raise ValueError(f"message {place}: `{strange[0]}` of the role {role} is not understood; remove it")
    kept["role"] = "system" if role == "developer" else kept["role"]
    if not isinstance(kept.get("tool_calls", []), list):
        raise ValueError(f"message {place}: `tool_calls` is no list")
    for call in kept.get("tool_calls", ()):
        if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
            raise ValueError(f"message {place}: a tool call without its `function`")
        if not isinstance(call["function"].get("name"), str):
            raise ValueError(f"message {place}: a tool call without the name of its `function`")
    return {**kept, "content": content}


def _text(part: Any, place: int) -> str:
    for key in ("text", "refusal"):
        if isinstance(part, Mapping) and isinstance(part.get(key), str):
            return str(part[key])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise ValueError(f"message {place} holds a part of the kind {kind!r}; only text can be learnt from")


def _score(beside: Mapping[str, Any], untold: float | None) -> float:
    for name in _SCORES:
        value = beside.get(name)
        if isinstance(value, int | float) and 0 <= value <= 1:
            return float(value)
        if value is not None:
            raise ValueError(f"`{name}` is {value!r}, and not a number in 0..1")
    if untold is None:
        raise ValueError("no `score`, `reward` or `success`; give one score for all conversations without one")
    return untold


def _named(messages: Sequence[Mapping[str, Any]]) -> str:
    # The log names no task: conversations with equal openings are one task.
    opening = []
    for message in messages:
        if message["role"] == "assistant":
            break
        opening.append([message["role"], message["content"]])
    return "opening-" + hashlib.sha256(orjson.dumps(opening)).hexdigest()[:16]


def _steps(messages: Sequence[Mapping[str, Any]]) -> list[Step]:
    # The messages up to the assistant's next one are the observation.
    steps: list[tuple[str, list[str]]] = []
    for message in messages:
        if message["role"] == "assistant":
            steps.append((as_text(message), []))
        elif steps:
            steps[-1][1].append(message["content"])
    return [
        Step(index, action, "\n".join(answers), 0.0, 0, 0, False, 0.0, 0.0)
        for index, (action, answers) in enumerate(steps)
    ]


def as_text(message: Mapping[str, Any]) -> str:
    """Return an assistant's message as text, followed by its tool calls in Hermes form."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):  # arguments that are not JSON stay text
                arguments = json.loads(arguments or "{}")
        said = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
        calls.append(f"<tool_call>\n{said}\n</tool_call>")
    return "\n".join([*([message["content"]] if message.get("content") else []), *calls])

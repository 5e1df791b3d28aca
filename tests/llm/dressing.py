"""A well-behaved answer in the clothes that a real model gives it: fences, prose, thinking, another shape, half of it,
a tool call."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from tests.llm.temperaments import Temper

Answer = dict[str, Any] | str
ToolCall = tuple[str, dict[str, Any]]

_BEFORE = (
    "Sure! Here is what you asked for:",
    "Let me think about what was asked. My reply:",
    "Based on the sections above:",
)
_AFTER = ("Let me know if you need anything else.", "I hope this helps!", "Note that I kept to the format.")
_THOUGHTS = (
    "Okay, the user wants me to reply with JSON. Let me look at the sections one by one. The transcript is what "
    "counts.",
    'Hmm. I should reply in the form {"thought": ..., "action": ...}, or whatever is asked for here. Wait, let me '
    "read that again.",
    "First, what is the task? Then, what happened? I think that I have it now.",
)
_REFUSALS = (
    "I'm sorry, but I can't assist with that request.",
    "I'm sorry, I can't help with that.",
    "As an AI language model, I am not able to act in external environments.",
)
_WORDS = ((0.85, "high"), (0.6, "medium"), (0.0, "low"))
_VERY = ((0.85, "very high"), (0.6, "moderate"), (0.0, "very low"))
_NUMBERS = ("confidence", "score")


@dataclass(slots=True)
class Dressed:
    """What goes over the wire: the parts of a message, and which ways were taken."""

    content: str | None
    finish_reason: str = "stop"
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)


def dress(answer: Answer, action_call: ToolCall | None, temper: Temper, rng: random.Random, max_tokens: int) -> Dressed:
    """Return an answer as a model of some temper says it.

    Args:
        answer: what a well-behaved model says.
        action_call: what the answer's action is as a native tool call, if it is one.
        temper: shares of the ways.
        rng: draws them; the same number of draws whatever is drawn.
        max_tokens: of the request; a reply whose tokens all went into its thinking spends them all.
    """
    drawn = {
        name: rng.random()
        for name in ("exhausted", "refusals", "tools", "shapes", "thinking", "prose", "fences", "cut")
    }
    kind = rng.random()
    ways = [name for name, draw in drawn.items() if draw < getattr(temper, name)]
    if "exhausted" in ways:
        return Dressed(None if kind < 0.5 else "", "length", reasoning="Hmm. " * max_tokens, ways=["exhausted"])
    if "refusals" in ways:
        return Dressed(_REFUSALS[int(kind * len(_REFUSALS))], ways=["refusals"])
    if "tools" in ways and (action_call is not None or isinstance(answer, dict)):
        assert action_call is not None or isinstance(answer, dict)
        call = action_call or ("reply", answer if isinstance(answer, dict) else {})
        return Dressed(None, "tool_calls", calls=[call], ways=["tools"])
    if isinstance(answer, str):
        text = f"```\n{answer}\n```" if "fences" in ways and "```" not in answer else answer
    else:
        text = json.dumps(reshaped(answer, rng) if "shapes" in ways else answer, ensure_ascii=False)
        if "fences" in ways:
            text = f"```{'json' if kind < 0.7 else ''}\n{text}\n```"
    if "prose" in ways:
        text = f"{_BEFORE[int(kind * len(_BEFORE))]}\n\n{text}"
        if not isinstance(answer, str):
            text += f"\n\n{_AFTER[int(kind * len(_AFTER))]}"
    reasoning = ""
    if "thinking" in ways:
        thoughts = "\n".join(_THOUGHTS[: 1 + int(kind * len(_THOUGHTS))])
        if kind < 0.5:
            text = f"<think>\n{thoughts}\n</think>\n\n{text}"
        else:
            reasoning = thoughts
    finish = "stop"
    if "cut" in ways:
        text = text[: max(1, int(len(text) * (0.2 + 0.7 * kind)))]
        finish = "length" if kind < 0.5 else "stop"
    return Dressed(text, finish, reasoning, ways=ways)


def reshaped(answer: dict[str, Any], rng: random.Random) -> Any:
    """Return an answer in another shape that says the same."""
    changes = [_with_words, _with_more_keys]
    lists = [key for key, value in answer.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(answer) == 1 and lists:
        changes.append(lambda value, _: value[lists[0]])
    if lists and any("tags" in item for item in answer[lists[0]]):
        changes.append(_with_joined_tags)
    if not lists:
        changes.append(lambda value, _: [value])
    return rng.choice(changes)(answer, rng)


def _with_words(value: Any, rng: random.Random) -> Any:
    """Write confidences and scores of 0 to 1 as words or as percentages in text."""
    way = rng.choice(("word", "very", "percent", "text"))

    def walk(item: Any) -> Any:
        if isinstance(item, list):
            return [walk(part) for part in item]
        if not isinstance(item, dict):
            return item
        return {
            k: _in_words(v, way) if k in _NUMBERS and isinstance(v, float) and 0 <= v <= 1 else walk(v)
            for k, v in item.items()
        }

    return walk(value)


def _in_words(number: float, way: str) -> str:
    if way == "percent":
        return f"{round(100 * number)}%"
    if way == "text":
        return str(number)
    return next(word for least, word in (_WORDS if way == "word" else _VERY) if number >= least)


def _with_more_keys(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list):
        return [_with_more_keys(part, rng) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        **{key: _with_more_keys(part, rng) for key, part in value.items()},
        "notes": "as asked",
        "difficulty": "easy",
    }


def _with_joined_tags(value: Any, rng: random.Random) -> Any:
    lists = {
        key: [{**item, "tags": ", ".join(item["tags"])} if "tags" in item else item for item in part]
        for key, part in value.items()
        if isinstance(part, list)
    }
    return {**value, **lists}

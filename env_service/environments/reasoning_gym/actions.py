"""The answer in a message, or why it has none."""

from __future__ import annotations

import re
from dataclasses import dataclass

from env_service.environments.reasoning_gym.prompts import TOOL_NAME
from env_service.tool_calls import BadCall, ToolCall

LONGEST_ANSWER = 20_000
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReasoningAnswer:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningNoAction:
    reason: str


def parse(text: str) -> ReasoningAnswer | ReasoningNoAction:
    """Read the last `<answer>...</answer>` behind a message's thoughts."""
    found = _TAGGED.findall(text.rsplit("</think>", 1)[-1])
    if not found:
        return ReasoningNoAction("This message holds no answer: write it between <answer> and </answer>.")
    return _answer(found[-1])


def answer_of_call(call: ToolCall | BadCall) -> ReasoningAnswer | ReasoningNoAction:
    if isinstance(call, BadCall):
        return ReasoningNoAction(call.reason)
    if call.name != TOOL_NAME:
        return ReasoningNoAction(f"there is no tool {call.name[:40]!r}, the only one is {TOOL_NAME}")
    if set(call.arguments) != {"answer"} or isinstance(call.arguments["answer"], bool | dict | list | None):
        return ReasoningNoAction(f"{TOOL_NAME} takes one text, `answer`")
    return _answer(str(call.arguments["answer"]))


def _answer(text: str) -> ReasoningAnswer | ReasoningNoAction:
    if len(text) > LONGEST_ANSWER:
        return ReasoningNoAction(f"The answer has {len(text)} characters, of which {LONGEST_ANSWER} are read.")
    return ReasoningAnswer(text.strip()) if text.strip() else ReasoningNoAction("The answer is empty.")

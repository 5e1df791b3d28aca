"""Two or three short examples of a role's replies, shown before its prompt.

Without examples, a small model copies a schema's placeholder words into its reply. The examples stand between the rules
and the prompt, so that a server's prefix cache keeps both.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from agentevolver.llm.prompts import REPLY_IS_SENT, Messages, PromptError, read_task, section


def with_examples(messages: Messages) -> Messages:
    """Insert the examples of a prompt's task between the rules and the first question, if there are any."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    rules = str(messages[0]["content"])
    is_action = REPLY_IS_SENT in rules
    if not is_action and "Reply with JSON" not in rules:
        return messages
    try:
        task = read_task(rules)
    except PromptError:
        return messages
    has_reference = any("<reference>" in str(message["content"]) for message in messages)
    return [messages[0], *_shown(task, has_reference, is_action), *messages[1:]]


@cache
def _examples() -> dict[str, list[dict[str, Any]]]:
    read: dict[str, list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return read


@cache
def _shown(task: str, with_reference: bool, is_action: bool) -> Messages:
    made: Messages = []
    for example in _examples().get(task, ()):
        reply = example["reply"]
        named = ((name, text) for name, text in example["prompt"].items() if with_reference or name != "reference")
        body = "\n\n".join(section(name, text) for name, text in named)
        said = reply["action"] if is_action else json.dumps(reply)
        made += [{"role": "user", "content": body}, {"role": "assistant", "content": said}]
    return made

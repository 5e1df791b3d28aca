"""Screen against prompt injection in stored experience.

Experience is distilled from text of agents and environments, which may try to get itself stored ("ignore previous
instructions, remember this"). The check needs no model and is narrow on purpose: control tokens, prompt tags, and usual
takeover phrases.
"""

from __future__ import annotations

import re
import unicodedata

MAX_WHEN_TO_USE = 500
MAX_CONTENT = 2000

_CONTROL_TOKEN = re.compile(
    r"<[|\uff5c][^|\uff5c<>\n]{1,60}[|\uff5c]>|\[/?INST\]|<</?SYS>>|</?s>|<(?:bos|eos|pad|start_of_turn|end_of_turn)>",
    re.IGNORECASE,
)
_PROMPT_TAG = re.compile(
    r"<\s*/?\s*(?:EXP|system|user|assistant|tool_call|tool_response|think|transcript|opening|task|outcome|experience|better|worse)\s*>",
    re.IGNORECASE,
)
_ROLE_LINE = re.compile(r"^\s*(?:system|assistant|user|human|developer)\s*:", re.IGNORECASE | re.MULTILINE)
_TAKEOVER = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.\n]{0,40}\b(?:previous|prior|above|earlier|all|any|your|these|other)\b[^.\n]{0,40}"
    r"\b(?:instruction|instructions|rule|rules|prompt|prompts|message|messages|guidelines|experiences?|context)\b"
    r"|\b(?:you are now|from now on,? you|system prompt)\b|\bnew instructions?\s*:"
    r"|\b(?:store this|save this (?:as|to)|remember this (?:as|instruction))\b"
    r"|\b(?:judge|grader|validator|evaluator|summari[sz]er)s?\b[^.\n]{0,40}\b(?:must|should|shall)\b",
    re.IGNORECASE,
)


def tidy(text: str) -> str:
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Co", "Cs")).strip()


def problem_with(when_to_use: str, content: str) -> str | None:
    """Return why an experience may not be stored, or None if it may."""
    if not when_to_use or not content:
        return "empty"
    if len(when_to_use) > MAX_WHEN_TO_USE or len(content) > MAX_CONTENT:
        return "too long"
    return problem_with_text(f"{when_to_use}\n{content}")


def problem_with_text(text: str) -> str | None:
    """Return why a text may not guide the policy, or None if it may."""
    for pattern, problem in (
        (_CONTROL_TOKEN, "control token"),
        (_PROMPT_TAG, "prompt tag"),
        (_ROLE_LINE, "role line"),
        (_TAKEOVER, "takeover"),
    ):
        if pattern.search(text):
            return problem
    return None

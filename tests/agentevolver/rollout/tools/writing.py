"""Calls written as a model of a family writes them, by the family's real chat template."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests.real_tokenizers import build_family
from tests.tools_of_families import TOOL_FAMILIES

Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Writer:
    """A family: the format that reads it, its template, and what joins calls if the template writes one a message."""

    format: str
    template: str
    joint: str | None = None

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return template_tokenizer(self.template)

    def text(self, calls: Sequence[Call], words: str = "") -> str:
        if self.joint is None:
            return by_template(self.template, calls, words)
        end = self.tokenizer().eos_token
        return self.joint.join(by_template(self.template, [call]).removesuffix(end) for call in calls) + end

    def ids(self, calls: Sequence[Call], words: str = "") -> list[int]:
        return list(self.tokenizer().encode(self.text(calls, words), add_special_tokens=False))


@functools.cache
def template_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Return a real template over the family's control tokens and bytes."""
    return build_family(TOOL_FAMILIES[template])


def by_template(template: str, calls: Sequence[Call], words: str = "") -> str:
    """Return what a template writes between the generation prompt and the next message."""
    tokenizer = template_tokenizer(template)
    user = {"role": "user", "content": "go"}
    listed = [
        {"id": f"c00001{place:03d}", "type": "function", "function": {"name": name, "arguments": dict(given)}}
        for place, (name, given) in enumerate(calls)
    ]
    reply = {"role": "assistant", "content": words, "tool_calls": listed}
    prompt = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([user, reply], tokenize=False)
    assert whole.startswith(prompt)
    return whole[len(prompt) :].removesuffix("\n")


WRITERS: dict[str, Writer] = {
    "qwen2_5": Writer("hermes", "qwen2_5"),
    "qwen3": Writer("hermes", "qwen3"),
    "qwen3_instruct_2507": Writer("hermes", "qwen3_instruct_2507"),
    "llama3_1": Writer("llama3", "llama3_1", ";"),
    "llama3_2": Writer("llama3", "llama3_2", ";"),
}


def writer(name: str) -> Writer:
    """Return the first family of a format."""
    return next(found for found in WRITERS.values() if found.format == name)

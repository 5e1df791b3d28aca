"""A stand-in tokenizer for models whose own is not available."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from context_manager.messages import calls_of, text_of

CHARS_PER_TOKEN = 4
_BITS = 21  # of a code point; an id packs several
_START, _END = "<|im_start|>", "<|im_end|>"
_SPECIAL = {_START: -1, _END: -2}
_SPLIT = re.compile(f"({re.escape(_START)}|{re.escape(_END)})")


class PlainTokenizer:
    """About four characters per token, exactly reversible, with ChatML around messages. For context limits only."""

    eos_token = _END
    eos_token_id = _SPECIAL[_END]

    def apply_chat_template(self, conversation: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        tools = f"{_START}system\n{json.dumps(kwargs['tools'])}{_END}\n" if kwargs.get("tools") else ""
        text = tools + "".join(f"{_START}{message['role']}\n{_plain(message)}{_END}\n" for message in conversation)
        return f"{text}{_START}assistant\n" if kwargs.get("add_generation_prompt") else text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for part in _SPLIT.split(text):
            if part in _SPECIAL:
                ids.append(_SPECIAL[part])
            else:
                ids += [_packed(part[i : i + CHARS_PER_TOKEN]) for i in range(0, len(part), CHARS_PER_TOKEN)]
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        special = {} if skip_special_tokens else {number: text for text, number in _SPECIAL.items()}
        return "".join(special.get(i, "") if i < 0 else _unpacked(i) for i in token_ids)


def _plain(message: Mapping[str, Any]) -> str:
    calls = calls_of(message)
    return text_of(message) + (f"\n{json.dumps(calls, ensure_ascii=False)}" if calls else "")


def _packed(chars: str) -> int:
    # The leading 1 keeps a leading NUL.
    number = 1
    for char in chars:
        number = number << _BITS | ord(char)
    return number


def _unpacked(number: int) -> str:
    chars = []
    while number > 1:
        chars.append(chr(number & (1 << _BITS) - 1))
        number >>= _BITS
    return "".join(reversed(chars))

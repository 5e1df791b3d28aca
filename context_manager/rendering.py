"""Renders messages with the tokenizer's chat template.

Only the chat template produces control tokens: other text that spells `<|im_end|>` is encoded as characters.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, Self

from jinja2 import TemplateError

from agentevolver.utils.tokens import decoder_of, encoder_of
from context_manager.messages import for_template

# Unicode noncharacters, which are not allowed in exchanged text. The text is split at each CUT before it is tokenised.
CUT, _EDGE = "\ufdd0", "\ufdd1"


class Marker(str):
    """Our own text, exempt from escaping."""

    __slots__ = ()


MARKER = Marker(f"{_EDGE}assistant{_EDGE}")
_RESERVED = str.maketrans(dict.fromkeys((CUT, _EDGE), "\ufffd"))
USER = {"role": "user", "content": "-"}
# Conversations that show which control tokens a template writes. Those that it refuses are skipped.
_TOOL_CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "-"}}}
_SHOWN: tuple[list[dict[str, Any]], ...] = (
    [{"role": "system", "content": "-"}, USER, {"role": "assistant", "content": "-"}, USER],
    [USER, {"role": "assistant", "content": "-"}, {"role": "tool", "content": "-"}, USER],
    [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [_TOOL_CALL]},
        {"role": "tool", "name": "f", "content": "-"},
    ],
)
# The same with tools. Mistral's templates demand call ids of nine letters and digits.
CALL = {**_TOOL_CALL, "id": "c00000000"}
ANSWER = {"role": "tool", "name": "f", "tool_call_id": "c00000000", "content": "-"}
_CALLED: tuple[list[dict[str, Any]], ...] = (
    *_SHOWN,
    [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, ANSWER],
    [USER, {"role": "assistant", "content": "-"}, USER, {"role": "assistant", "content": "-"}],
)
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "-",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "-"}}},
    },
}
# Number of renderers kept, one per list of tools.
_KEPT = 64


class ChatTemplateError(ValueError):
    """The chat template cannot be continued turn by turn, or cannot be taken apart."""


class ChatTokenizer(Protocol):
    eos_token: str
    eos_token_id: int

    def apply_chat_template(self, conversation: Sequence[dict[str, Any]], **kwargs: Any) -> Any: ...

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


class TemplateText:
    """Text that a chat template writes, with or without tools."""

    _of_tools: OrderedDict[str, Self]
    _without_tools: Self | None = None

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        template_kwargs: dict[str, Any] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self._encode = encoder_of(tokenizer)
        self._decode = decoder_of(tokenizer)
        self.template_kwargs = dict(template_kwargs or {})
        self.stop_token_ids = frozenset({tokenizer.eos_token_id, *stop_token_ids})
        self.tools: tuple[dict[str, Any], ...] = ()
        self._of_tools = OrderedDict()
        self._shown: set[tuple[str, bool]] = set()

    @property
    def _root(self) -> Self:
        return self if self._without_tools is None else self._without_tools

    def for_tools(self, tools: Sequence[Mapping[str, Any]]) -> Self:
        root = self._root
        if not tools:
            return root
        key = json.dumps(list(tools), ensure_ascii=False)
        if (renderer := root._of_tools.get(key)) is None:
            given = json.loads(key)
            renderer = type(self)(self.tokenizer, root.template_kwargs, tuple(root.stop_token_ids))
            renderer._without_tools, renderer.tools = root, tuple(given)
            # Names and descriptions may spell control tokens.
            renderer.template_kwargs["tools"] = renderer._inert(given, by_policy=False)
            root._of_tools[key] = renderer
            if len(root._of_tools) > _KEPT:
                root._of_tools.popitem(last=False)
        root._of_tools.move_to_end(key)
        return renderer

    def render(self, messages: Sequence[dict[str, Any]], *, generate: bool = True) -> str:
        """Return the template's text; raises ChatTemplateError."""
        return self._render(messages, generate=generate).replace(CUT, "")

    def _render(self, messages: Sequence[dict[str, Any]], *, generate: bool = True, without_tools: bool = False) -> str:
        as_text = any(message.get("tool_calls") for message in messages) and self._root._arguments_as_text
        try:
            text: str = self.tokenizer.apply_chat_template(
                [
                    self._inert(for_template(message, arguments_as_text=as_text), message.get("role") == "assistant")
                    for message in messages
                ],
                tokenize=False,
                add_generation_prompt=generate,
                **(self._root if without_tools else self).template_kwargs,
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ChatTemplateError(f"the chat template refuses messages of the roles {roles}: {error}") from error
        return text

    @cached_property
    def _arguments_as_text(self) -> bool:
        # Some templates take call arguments as JSON text instead of data, and fail on the other form.
        for as_text in (False, True):
            calling = for_template({"role": "assistant", "tool_calls": [CALL]}, arguments_as_text=as_text)
            try:
                self.tokenizer.apply_chat_template(
                    [USER, calling, ANSWER], tokenize=False, add_generation_prompt=True, **self.template_kwargs
                )
            except (TemplateError, TypeError, ValueError):
                continue
            return as_text
        return False

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        return _any_of(token.content for token in self._added if token.special)

    @cached_property
    def _control(self) -> re.Pattern[str] | None:
        # Special tokens, and other added tokens that the chat template writes (`<tool_response>`, `<|User|>`, ...).
        return self._root._control_of_tools if self.tools else self._spelled(_SHOWN, self.template_kwargs)

    @cached_property
    def _control_of_tools(self) -> re.Pattern[str] | None:
        messages = [
            [for_template(message, arguments_as_text=as_text) for message in shown]
            for shown in _CALLED
            for as_text in (False, True)
        ]
        return self._spelled(messages, {**self.template_kwargs, "tools": [TOOL]})

    def _spelled(
        self, conversations: Iterable[list[dict[str, Any]]], template_kwargs: dict[str, Any]
    ) -> re.Pattern[str] | None:
        """Match special tokens, and other added tokens that the template writes in these conversations."""
        written = []
        for messages in conversations:
            try:
                for prompted in (False, True):
                    kwargs = {"tokenize": False, "add_generation_prompt": prompted, **template_kwargs}
                    written.append(self.tokenizer.apply_chat_template(messages, **kwargs))
            except (TemplateError, TypeError, ValueError):  # this template knows no such message
                continue
        return _any_of(
            token.content for token in self._added if token.special or any(token.content in text for text in written)
        )

    @property
    def _added(self) -> list[Any]:
        return list(self._added_ids.values())

    @property
    def _added_ids(self) -> dict[int, Any]:
        return dict(getattr(self.tokenizer, "added_tokens_decoder", {}))

    def _inert(self, value: Any, by_policy: bool) -> Any:
        if isinstance(value, str):
            # A CUT inside the spelling of a control token makes the tokenizer encode it as characters.
            if isinstance(value, Marker):
                return value
            # The policy's own messages keep the tags that it may write (`<think>`, `<tool_call>`).
            spelled = self._special if by_policy else self._control
            text = value.translate(_RESERVED)
            return spelled.sub(lambda found: found[0][0] + CUT + found[0][1:], text) if spelled else text
        if isinstance(value, Mapping):
            return {self._inert(key, by_policy): self._inert(part, by_policy) for key, part in value.items()}
        if isinstance(value, Sequence):
            return [self._inert(part, by_policy) for part in value]
        return value

    def _encode_cut(self, text: str) -> list[int]:
        return [token for part in text.split(CUT) for token in self.encode(part)]

    def encode(self, text: str) -> list[int]:
        return self._encode(text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._decode(ids, skip_special_tokens)

    def encode_inert(self, text: str) -> list[int]:
        return self._encode_cut(self._inert(text, by_policy=False))


def _any_of(spellings: Iterable[str]) -> re.Pattern[str] | None:
    # A CUT cannot split a single character. Longest first: one spelling may begin another.
    found = sorted({text for text in spellings if len(text) > 1}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, found))) if found else None

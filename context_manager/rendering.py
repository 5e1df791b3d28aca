"""Messages as the text that a tokenizer's own chat template makes of them, and that text as ids.

Control tokens come from the chat template alone. Text that somebody wrote (an environment, a task, an experience, a
tool's description, a rewritten reply) may spell `<|im_end|>` or `</tool_response>`: its characters are encoded, the
token's id never arises.
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

# Noncharacters of Unicode, which no text that is exchanged may hold: CUT stands where text is parted before it is
# tokenised.
CUT, _EDGE = "\ufdd0", "\ufdd1"


class Marker(str):
    """Text of ours that is left as it is when a message is made inert."""

    __slots__ = ()


MARKER = Marker(f"{_EDGE}assistant{_EDGE}")
_RESERVED = str.maketrans(dict.fromkeys((CUT, _EDGE), "\ufffd"))
USER = {"role": "user", "content": "-"}
# What control tokens a template writes is seen in these; one that it refuses is left out.
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
# The same where a template is given tools; nine letters and digits are an id that every family takes.
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
# Renderers that are kept, one a list of tools.
_KEPT = 64


class ChatTemplateError(ValueError):
    """The tokenizer's chat template cannot be continued turn by turn, or not taken apart."""


class ChatTokenizer(Protocol):
    """Tokenizer: what is used of a Hugging Face one."""

    eos_token: str
    eos_token_id: int

    def apply_chat_template(self, conversation: Sequence[dict[str, Any]], **kwargs: Any) -> Any: ...

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


class TemplateText:
    """Text of a chat template, with tools or without."""

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
        """The renderer without tools."""
        return self if self._without_tools is None else self._without_tools

    def for_tools(self, tools: Sequence[Mapping[str, Any]]) -> Self:
        """Return the renderer whose chat template is given these tools (OpenAI's form), one for each list of them; for
        none, the renderer without tools. What names and descriptions spell cannot become a control token."""
        root = self._root
        if not tools:
            return root
        key = json.dumps(list(tools), ensure_ascii=False)
        if (renderer := root._of_tools.get(key)) is None:
            given = json.loads(key)
            renderer = type(self)(self.tokenizer, root.template_kwargs, tuple(root.stop_token_ids))
            renderer._without_tools, renderer.tools = root, tuple(given)
            renderer.template_kwargs["tools"] = renderer._inert(given, by_policy=False)
            root._of_tools[key] = renderer
            if len(root._of_tools) > _KEPT:
                root._of_tools.popitem(last=False)
        root._of_tools.move_to_end(key)
        return renderer

    def render(self, messages: Sequence[dict[str, Any]], *, generate: bool = True) -> str:
        """Return messages as the text that the chat template makes of them, with a generation prompt or without.

        Raises:
            ChatTemplateError: the template refuses them.
        """
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
        """Whether the template takes the arguments of calls as JSON text and not as data."""
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

    # ---- what somebody wrote stays text ----

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        """What spells a token that the tokenizer calls special."""
        return _any_of(token.content for token in self._added if token.special)

    @cached_property
    def _control(self) -> re.Pattern[str] | None:
        """What spells a special token, or another added one
        that the chat template writes itself (`<tool_response>`, `<|User|>`, ...)."""
        return self._root._control_of_tools if self.tools else self._spelled(_SHOWN, self.template_kwargs)

    @cached_property
    def _control_of_tools(self) -> re.Pattern[str] | None:
        """The same where the template is given tools."""
        messages = [
            [for_template(message, arguments_as_text=as_text) for message in shown]
            for shown in _CALLED
            for as_text in (False, True)
        ]
        return self._spelled(messages, {**self.template_kwargs, "tools": [TOOL]})

    def _spelled(
        self, conversations: Iterable[list[dict[str, Any]]], template_kwargs: dict[str, Any]
    ) -> re.Pattern[str] | None:
        """Return what spells a special token, or another added one that the template writes in these conversations."""
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
        """Return a message, or a part of one, with a cut inside everything that spells a control token; the tags that
        the policy itself may write (`<think>`, `<tool_call>`) stay whole in its own messages."""
        if isinstance(value, str):
            if isinstance(value, Marker):
                return value
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
        """Return the ids of `text`; a control token that it spells becomes that token, so it is for sampled text and
        the template's own."""
        return self._encode(text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        return self._decode(ids, skip_special_tokens)

    def encode_inert(self, text: str) -> list[int]:
        """Return the ids of text that somebody else wrote: no control token among them, whatever it spells."""
        return self._encode_cut(self._inert(text, by_policy=False))


def _any_of(spellings: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern of these texts, longest first;
    None if there is none of two characters or more, which a cut could part."""
    found = sorted({text for text in spellings if len(text) > 1}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, found))) if found else None

"""Chat messages to token ids, once each, for any chat template.

A conversation is never tokenised as a whole again after its opening: what follows an assistant turn is rendered on its
own (the close of that turn, the new messages, the next generation prompt) and appended to the ids that the engine
really saw. Where a conversation is edited, its pieces (opening, assistant turns, what was said after each, generation
prompt) are put together anew, each still tokenised once. A chat template that cannot be taken apart that way is refused
with `ChatTemplateError` when it is first used.

Control tokens come from the chat template alone. Text that somebody wrote (an environment, a task, an experience, a
rewritten reply) may spell `<|im_end|>` or `</tool_response>`: its characters are encoded, the token's id never arises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from jinja2 import TemplateError

# Of `PlainTokenizer`.
CHARS_PER_TOKEN = 4
_BITS = 21  # of a code point
_START, _END = "<|im_start|>", "<|im_end|>"
_SPECIAL = {_START: -1, _END: -2}
_SPLIT = re.compile(f"({re.escape(_START)}|{re.escape(_END)})")
# Noncharacters of Unicode, which no text that is exchanged may hold: _CUT stands where text is parted before it is
# tokenised.
_CUT, _EDGE = "\ufdd0", "\ufdd1"
_MARKER = f"{_EDGE}assistant{_EDGE}"
_RESERVED = str.maketrans(dict.fromkeys((_CUT, _EDGE), "\ufffd"))
_USER = {"role": "user", "content": "-"}
# What control tokens a template writes is seen in these; one that it refuses is left out.
_TOOL_CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "-"}}}
_SHOWN: tuple[list[dict[str, Any]], ...] = (
    [{"role": "system", "content": "-"}, _USER, {"role": "assistant", "content": "-"}, _USER],
    [_USER, {"role": "assistant", "content": "-"}, {"role": "tool", "content": "-"}, _USER],
    [
        _USER,
        {"role": "assistant", "content": "", "tool_calls": [_TOOL_CALL]},
        {"role": "tool", "name": "f", "content": "-"},
    ],
)


class ChatTemplateError(ValueError):
    """The tokenizer's chat template cannot be continued turn by turn, or not taken apart."""


class ChatTokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    eos_token: str
    eos_token_id: int

    def apply_chat_template(self, conversation: Sequence[dict[str, Any]], **kwargs: Any) -> Any: ...

    def encode(self, text: str, add_special_tokens: bool = ...) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What a chat template writes around messages: before a user message at the start, before a reply that is to be
    sampled, and before an assistant message of the past (without the opened or empty thought that some put before a
    reply)."""

    start: str
    generation: str
    generation_ids: list[int]
    header_ids: list[int]


class ChatRenderer:
    """Renders messages through a tokenizer's own chat template.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        template_kwargs: passed to the template (`enable_thinking`, say).
        stop_token_ids: further ids that end a reply, beside the tokenizer's eos and the token that the chat template
            closes it with.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        template_kwargs: dict[str, Any] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.stop_token_ids = frozenset({tokenizer.eos_token_id, *stop_token_ids})
        self._shown: set[str] = set()

    def _render(self, messages: Sequence[dict[str, Any]], *, generate: bool = True) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                [self._inert(message, message.get("role") == "assistant") for message in messages],
                tokenize=False,
                add_generation_prompt=generate,
                **self.template_kwargs,
            )
        except TemplateError as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ChatTemplateError(f"the chat template refuses messages of the roles {roles}: {error}") from error
        return text

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        """What spells a token that the tokenizer calls special."""
        return _any_of(token.content for token in self._added if token.special)

    @cached_property
    def _control(self) -> re.Pattern[str] | None:
        """What spells a special token, or another added one that the chat template writes itself (`<tool_response>`,
        `<|User|>`, ...)."""
        written = []
        for messages in _SHOWN:
            try:
                for prompted in (False, True):
                    kwargs = {"tokenize": False, "add_generation_prompt": prompted, **self.template_kwargs}
                    written.append(self.tokenizer.apply_chat_template(messages, **kwargs))
            except (TemplateError, TypeError, ValueError):  # this template knows no such message
                continue
        return _any_of(
            token.content for token in self._added if token.special or any(token.content in text for text in written)
        )

    @property
    def _added(self) -> list[Any]:
        return list(getattr(self.tokenizer, "added_tokens_decoder", {}).values())

    def _inert(self, value: Any, by_policy: bool) -> Any:
        """Return a message, or a part of one, with a cut inside everything that spells a control token; the tags that
        the policy itself may write (`<think>`, `<tool_call>`) stay whole in its own messages."""
        if isinstance(value, str):
            if by_policy and value == _MARKER:
                return value
            spelled = self._special if by_policy else self._control
            text = value.translate(_RESERVED)
            return spelled.sub(lambda found: found[0][0] + _CUT + found[0][1:], text) if spelled else text
        if isinstance(value, Mapping):
            return {key: self._inert(part, by_policy) for key, part in value.items()}
        if isinstance(value, Sequence):
            return [self._inert(part, by_policy) for part in value]
        return value

    def _encode_cut(self, text: str) -> list[int]:
        return [token for part in text.split(_CUT) for token in self.encode(part)]

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; a control token that it spells becomes that token, so it is for sampled text and
        the template's own."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_inert(self, text: str) -> list[int]:
        """Return the ids of text that somebody else wrote: no control token among them, whatever it spells."""
        return self._encode_cut(self._inert(text, by_policy=False))

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without special tokens: what the environment is given."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def raw_text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids with their special tokens, the one that closes the turn left out."""
        return self.tokenizer.decode(ids[:-1] if self.ends_turn(ids) else ids, skip_special_tokens=False)

    def opening(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the ids of a conversation's first messages and the generation prompt after them."""
        return self._encode_cut(self._render(messages))

    def ends_turn(self, ids: Sequence[int]) -> bool:
        """Whether the last sampled id ends the reply (false: the reply was cut by the token limit)."""
        return bool(ids) and (ids[-1] in self.stop_token_ids or self.closes_turn(ids))

    def closes_turn(self, ids: Sequence[int]) -> bool:
        """Whether the last sampled id is the token with which the chat template closes an assistant turn. A reply that
        ends with another one (`<|endoftext|>`, say, where turns close with `<|im_end|>`) keeps it, and the template's
        follows in later prompts."""
        return bool(ids) and self._close is not None and ids[-1] == self._close[0]

    @cached_property
    def _close(self) -> tuple[int, str] | None:
        """Id and text of the token with which the chat template closes an assistant turn; None if that is no token of
        its own."""
        _, found, tail = self._render([_USER, {"role": "assistant", "content": _MARKER}, _USER]).rpartition(_MARKER)
        first = self.encode(tail)[:1] if found else []
        text = self.tokenizer.decode(first, skip_special_tokens=False)
        special = first and (
            first[0] in self.stop_token_ids or not self.tokenizer.decode(first, skip_special_tokens=True)
        )
        return (first[0], text) if special and tail.startswith(text) else None

    def continuation(self, messages: Sequence[dict[str, Any]], *, closed: bool) -> list[int]:
        """Return the ids that follow an assistant turn: its close, the new messages, the next generation prompt.

        `closed` says that the sampled ids already hold the turn's closing token, which is then not repeated. When they
        do not, the close is part of the continuation and so never counts as sampled.
        """
        return self._encode_cut(self._after_assistant(messages, closed))

    def _after_assistant(self, messages: Sequence[dict[str, Any]], closed: bool) -> str:
        rendered = self._render([_USER, {"role": "assistant", "content": _MARKER}, *messages])
        _, found, tail = rendered.rpartition(_MARKER)
        for role in {str(message["role"]) for message in messages} - self._shown:
            self._check_shown(role)
        if not found:
            raise ChatTemplateError(
                "the chat template rewrites an earlier assistant message, so a conversation cannot be continued"
            )
        if closed:
            if self._close is None or not tail.startswith(self._close[1]):
                raise ChatTemplateError(
                    f"the chat template closes an assistant message with {tail[:16]!r}, which is no token of its own"
                )
            tail = tail[len(self._close[1]) :]
        return tail

    def _check_shown(self, role: str) -> None:
        """Raise ChatTemplateError where the template writes nothing of a message of this role; asked once a role."""
        if "seen" not in self._render(
            [_USER, {"role": "assistant", "content": "-"}, {"role": role, "content": "seen"}]
        ):
            raise ChatTemplateError(
                f"the chat template leaves out messages of the role {role}: set "
                "actor_rollout_ref.rollout.observation_role to one it shows"
            )
        self._shown.add(role)

    # ---- the pieces of a conversation that is edited ----

    @cached_property
    def _pieces(self) -> _Pieces:
        start, asked = self._render([_USER], generate=False), self._render([_USER])
        past = self._render([_USER, {"role": "assistant", "content": _MARKER}, _USER], generate=False)
        if not (asked.startswith(start) and past.startswith(start) and _MARKER in past) or asked == start:
            raise ChatTemplateError(
                "the chat template writes a message differently once others follow it: use context_template causal"
            )
        generation, header = asked[len(start) :], past[len(start) : past.index(_MARKER)]
        ids = self.encode(generation)
        if self.encode(asked) != self.encode(start) + ids:
            raise ChatTemplateError(
                f"the generation prompt {generation!r} does not begin with a token of its own, so a conversation "
                "cannot be put together "
                "from pieces: use context_template causal"
            )
        return _Pieces(start, generation, ids, self.encode(header))

    @property
    def generation(self) -> list[int]:
        """The ids of the generation prompt alone."""
        return self._pieces.generation_ids

    @property
    def opens_thought(self) -> bool:
        """Whether the generation prompt already opens a thought, so that replies begin inside it."""
        return self._pieces.generation.rstrip().endswith("<think>")

    def head(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the ids of a conversation's first messages, without a generation prompt."""
        return self._encode_cut(self._without_generation(self._render(messages)))

    def follow(self, messages: Sequence[dict[str, Any]], *, closed: bool | None) -> list[int]:
        """Return the ids of messages without a generation prompt: after an assistant turn that is `closed` or not, the
        rest of its close included; or, for None, after the user message that ends the opening."""
        if closed is not None:
            return self._encode_cut(self._without_generation(self._after_assistant(messages, closed)))
        rendered, start = self._render([_USER, *messages]), self._pieces.start
        if not rendered.startswith(start):
            raise ChatTemplateError(
                "the chat template writes a message differently once others follow it: use context_template causal"
            )
        return self._encode_cut(self._without_generation(rendered[len(start) :]))

    def assistant(self, text: str) -> list[int]:
        """Return the ids of an assistant message of the past: its header and `text`, not closed yet."""
        return self._pieces.header_ids + self._encode_cut(self._inert(text, by_policy=True))

    def _without_generation(self, rendered: str) -> str:
        generation = self._pieces.generation
        if not rendered.endswith(generation):
            raise ChatTemplateError(
                f"the chat template ends with {rendered[-24:]!r} here and with {generation!r} elsewhere: use "
                "context_template causal"
            )
        return rendered[: -len(generation)]

    def clip(self, text: str, max_tokens: int) -> str:
        """Return `text` cut to `max_tokens` tokens: its head and tail are kept and the gap is named, or the head alone
        where that does not fit. Half characters (lone surrogates) are replaced."""
        raw = text.encode("utf-8", "replace")
        text = raw.decode()
        if len(raw) <= max_tokens:  # a token is at least one byte
            return text
        ids = self.encode_inert(text)
        if len(ids) <= max_tokens:
            return text
        room = max_tokens - len(self.encode(_gap(len(ids))))
        named = room >= 2
        room = room if named else max_tokens
        while room > 0:
            head, tail = (room - room // 2, room // 2) if named else (room, 0)
            # A character may be several tokens: what the cut leaves of one is taken away.
            begin = self.tokenizer.decode(ids[:head]).rstrip("\ufffd")
            end = self.tokenizer.decode(ids[len(ids) - tail :]).lstrip("\ufffd")
            clipped = f"{begin}{_gap(len(ids) - room)}{end}" if named else begin
            over = len(self.encode_inert(clipped)) - max_tokens
            if over <= 0:
                return clipped
            room -= over
        return ""


def _any_of(spellings: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern of these texts, longest first; None if there is none of two characters or more, which a cut
    could part."""
    found = sorted({text for text in spellings if len(text) > 1}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, found))) if found else None


def _gap(tokens: int) -> str:
    return f"\n[{tokens} tokens cut]\n"


class PlainTokenizer:
    """A tokenizer for models whose own is not at hand: about four characters a token, exactly reversible, ChatML around
    messages.

    It serves to hold the limits of a context whose conversation is sent as chat messages; its ids are seen by nobody.
    An id packs the code points of the characters that it stands for.
    """

    eos_token = _END
    eos_token_id = _SPECIAL[_END]

    def apply_chat_template(self, conversation: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Return the conversation as ChatML."""
        text = "".join(f"{_START}{message['role']}\n{message['content']}{_END}\n" for message in conversation)
        return f"{text}{_START}assistant\n" if kwargs.get("add_generation_prompt") else text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = []
        for part in _SPLIT.split(text):
            if part in _SPECIAL:
                ids.append(_SPECIAL[part])
            else:
                ids += [_packed(part[i : i + CHARS_PER_TOKEN]) for i in range(0, len(part), CHARS_PER_TOKEN)]
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        special = {} if skip_special_tokens else {number: text for text, number in _SPECIAL.items()}
        return "".join(special.get(i, "") if i < 0 else _unpacked(i) for i in token_ids)


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

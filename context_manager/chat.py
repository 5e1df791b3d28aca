"""Renders chat messages to token ids with any chat template; a conversation is never tokenised again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from context_manager.plain import CHARS_PER_TOKEN, PlainTokenizer
from context_manager.rendering import MARKER, USER, ChatTemplateError, ChatTokenizer
from context_manager.replies import Replies

__all__ = ["CHARS_PER_TOKEN", "ChatRenderer", "ChatTemplateError", "ChatTokenizer", "PlainTokenizer"]


# Characters that are tokenised of a longer text: so many, and more for each token that may stay.
_LEAST_CHARS, _CHARS_OF_TOKEN = 32_768, 16
# No token of any vocabulary in use has more characters.
_MOST_CHARS = 128


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What a chat template writes around messages."""

    start: str  # before the first user message
    generation: str  # before a reply to sample; some templates open a thought here
    generation_ids: list[int]
    header_ids: list[int]  # before an earlier reply


class ChatRenderer(Replies):
    """Renders messages with a tokenizer's chat template.

    `stop_token_ids` end a reply, besides eos and the template's own closing token.
    """

    # After the opening, only what follows an assistant turn is rendered: the rest of its close, new messages, the next
    # generation prompt. The ids that the engine sampled are never changed.

    def opening(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return self._encode_cut(self._render(messages))

    def continuation(
        self, messages: Sequence[dict[str, Any]], *, closed: bool, calls: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids after an assistant turn: its close, the new messages, the next generation prompt.

        `closed`: the sampled ids already hold the closing token. `calls`: the turn's tool calls; answers must carry
        their ids. Raises ChatTemplateError if the template refuses or omits a message.
        """
        return self._encode_cut(self._after_assistant(messages, closed, calls))

    # ---- the pieces of a conversation that is edited ----

    @cached_property
    def _pieces(self) -> _Pieces:
        start, asked = self._render([USER], generate=False), self._render([USER])
        past = self._render([USER, {"role": "assistant", "content": MARKER}, USER], generate=False)
        # A template without generation prompt must not have a header either (`[INST]...[/INST]reply`).
        bare = asked == start and past[len(start) :].lstrip().startswith(MARKER)
        taken_apart = asked.startswith(start) and past.startswith(start) and MARKER in past
        if not taken_apart or (asked == start and not bare):
            raise ChatTemplateError(
                "the chat template writes a message differently once others follow it: use context_template causal"
            )
        generation, header = asked[len(start) :], past[len(start) : past.index(MARKER)]
        ids = self.encode(generation)
        # Pieces may only be joined as ids if no token spans their border.
        if self.encode(asked) != self.encode(start) + ids:
            raise ChatTemplateError(
                f"the generation prompt {generation!r} does not begin with a token of its own, so a conversation "
                "cannot be put together "
                "from pieces: use context_template causal"
            )
        return _Pieces(start, generation, ids, self.encode(header))

    @property
    def generation(self) -> list[int]:
        return self._pieces.generation_ids

    @property
    def opens_thought(self) -> bool:
        """Whether the generation prompt opens a thought, so that replies begin inside it."""
        return self._pieces.generation.rstrip().endswith("<think>")

    def head(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return self._encode_cut(self._without_generation(self._render(messages)))

    def follow(
        self, messages: Sequence[dict[str, Any]], *, closed: bool | None, calls: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids of messages after an assistant turn (or the opening, if `closed` is None), no generation
        prompt.
        """
        if closed is not None:
            return self._encode_cut(self._without_generation(self._after_assistant(messages, closed, calls)))
        rendered, start = self._render([USER, *messages]), self._pieces.start
        if not rendered.startswith(start):
            raise ChatTemplateError(
                "the chat template writes a message differently once others follow it: use context_template causal"
            )
        return self._encode_cut(self._without_generation(rendered[len(start) :]))

    def assistant(self, text: str) -> list[int]:
        return self._pieces.header_ids + self._encode_cut(self._inert(text, by_policy=True))

    def reply(self, message: Mapping[str, Any]) -> list[int]:
        """Return the ids of an assistant message as if the policy had sampled it; raises ChatTemplateError."""
        content, calls = str(message.get("content") or ""), message.get("tool_calls")
        if content.startswith("<think>") and self._render([USER]).rstrip().endswith("<think>"):
            content = content.removeprefix("<think>").lstrip("\n")  # the generation prompt opens the thought
        if not calls:
            return [*self._encode_cut(self._inert(content, by_policy=True)), self.end_id]
        rendered = self._render([USER, {**message, "content": MARKER}], generate=False)
        _, found, tail = rendered.rpartition(MARKER)
        if not found and not content:
            # Some templates write calls instead of the text, not after it.
            asked, rendered = self._render([USER]), self._render([USER, {**message, "content": ""}], generate=False)
            found, tail = asked, rendered[len(asked) :] if rendered.startswith(asked) else ""
        close = self._first_close(tail) if found else None
        if close is None:
            raise ChatTemplateError("the chat template does not write tool calls behind the text of a message")
        if not tail[: close[0]].strip():
            raise ChatTemplateError("the chat template writes no tool calls")
        called = tail[: close[0]] if content else tail[: close[0]].lstrip("\n")
        return [*self._encode_cut(self._inert(content, by_policy=True) + called), close[1]]

    def _without_generation(self, rendered: str) -> str:
        generation = self._pieces.generation
        if not rendered.endswith(generation):
            raise ChatTemplateError(
                f"the chat template ends with {rendered[-24:]!r} here and with {generation!r} elsewhere: use "
                "context_template causal"
            )
        return rendered.removesuffix(generation)

    def clip(self, text: str, max_tokens: int) -> str:
        """Cut the middle of a text to fit `max_tokens`; a note gives the size of the gap.

        The middle of a very long text is not tokenised, so the note of its gap is an estimate.
        """
        side = (_LEAST_CHARS + _CHARS_OF_TOKEN * max_tokens) // 2
        if (removed := max(0, len(text) - 2 * side)) > 0:
            text = text[:side] + text[-side:]
        raw = text.encode("utf-8", "replace")  # tokenizers refuse lone surrogates
        text = raw.decode()
        if not removed and len(raw) <= max_tokens:  # a token is at least one byte
            return text
        ids = self.encode_inert(text)
        if not removed and len(ids) <= max_tokens:
            return text
        total = len(ids) + removed * len(ids) // len(text)
        about = "about " if removed else ""
        room = min(max_tokens - len(self.encode(_gap(about, total))), len(ids))
        named = room >= 2
        room = room if named else max_tokens
        while room > 0:
            head, tail = (room - room // 2, room // 2) if named else (room, 0)
            # A character may be several tokens: remove what the cut leaves of one.
            begin = self.tokenizer.decode(ids[:head]).rstrip("\ufffd")
            end = self.tokenizer.decode(ids[len(ids) - tail :]).lstrip("\ufffd")
            clipped = f"{begin}{_gap(about, total - room)}{end}" if named else begin
            over = len(self.encode_inert(clipped)) - max_tokens
            if over <= 0:
                return clipped
            room -= over
        return ""

    def overflows(self, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> bool:
        """Whether messages have more tokens for certain. Only the beginning of long messages is tokenised."""
        texts = [str(message.get("content") or "") for message in messages]
        size, most = sum(map(len, texts)), _LEAST_CHARS + _CHARS_OF_TOKEN * max_tokens
        if size <= most:
            return False
        return size > _MOST_CHARS * max_tokens or len(self.encode_inert("".join(texts)[:most])) > max_tokens


def _gap(about: str, tokens: int) -> str:
    return f"\n[{about}{tokens} tokens cut]\n"

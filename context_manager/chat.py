"""Chat messages to token ids, once each, for any chat template.

A conversation is never tokenised as a whole again after its opening: what follows an assistant turn is rendered on its
own (the close of that turn, the new messages, the next generation prompt) and appended to the ids that the engine
really saw. Where a conversation is edited, its pieces (opening, assistant turns, what was said after each, generation
prompt) are put together anew, each still tokenised once. A chat template that cannot be taken apart that way is refused
with `ChatTemplateError` when it is first used.

Below it stand `replies.py` (what ends a reply and what follows it) and `rendering.py` (the template's text, in which
nobody else's text becomes a control token).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from context_manager.plain import CHARS_PER_TOKEN, PlainTokenizer
from context_manager.rendering import MARKER, USER, ChatTemplateError, ChatTokenizer
from context_manager.replies import Replies

__all__ = ["CHARS_PER_TOKEN", "ChatRenderer", "ChatTemplateError", "ChatTokenizer", "PlainTokenizer"]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Pieces that a chat template writes around messages: before a user message at the start, before a reply that is to
    be sampled, and before an assistant message of the past (without the opened or empty thought that some put before a
    reply)."""

    start: str
    generation: str
    generation_ids: list[int]
    header_ids: list[int]


class ChatRenderer(Replies):
    """Renderer of messages through a tokenizer's own chat template.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        template_kwargs: passed to the template (`enable_thinking`, say).
        stop_token_ids: further ids that end a reply, beside the tokenizer's eos and the token that the chat template
            closes it with.
    """

    def opening(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Return the ids of a conversation's first messages and the generation prompt after them."""
        return self._encode_cut(self._render(messages))

    def continuation(
        self, messages: Sequence[dict[str, Any]], *, closed: bool, calls: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids that follow an assistant turn: its close, the new messages, the next generation prompt.

        Args:
            messages: what was said after it; answers of tools (role `tool`) have the ids of `calls`.
            closed: that the sampled ids already hold the turn's closing token, which is then not repeated. When they do
                not, the close is part of the continuation and so never counts as sampled.
            calls: the tool calls of the turn (`closes_turn` is asked with the same ones), in OpenAI's form; no token of
                theirs is among the ids.

        Raises:
            ChatTemplateError: the template refuses the messages, leaves one out, or cannot be continued.
        """
        return self._encode_cut(self._after_assistant(messages, closed, calls))

    # ---- the pieces of a conversation that is edited ----

    @cached_property
    def _pieces(self) -> _Pieces:
        start, asked = self._render([USER], generate=False), self._render([USER])
        past = self._render([USER, {"role": "assistant", "content": MARKER}, USER], generate=False)
        # Without a generation prompt, replies must need no header either (`[INST]...[/INST]reply`).
        bare = asked == start and past[len(start) :].lstrip().startswith(MARKER)
        taken_apart = asked.startswith(start) and past.startswith(start) and MARKER in past
        if not taken_apart or (asked == start and not bare):
            raise ChatTemplateError(
                "the chat template writes a message differently once others follow it: use context_template causal"
            )
        generation, header = asked[len(start) :], past[len(start) : past.index(MARKER)]
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

    def follow(
        self, messages: Sequence[dict[str, Any]], *, closed: bool | None, calls: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the ids of messages without a generation prompt: after an assistant turn that is `closed` or not and
        made `calls`, the rest of its close included; or, for None, after the user message that ends the opening."""
        if closed is not None:
            return self._encode_cut(self._without_generation(self._after_assistant(messages, closed, calls)))
        rendered, start = self._render([USER, *messages]), self._pieces.start
        if not rendered.startswith(start):
            raise ChatTemplateError(
                "the chat template writes a message differently once others follow it: use context_template causal"
            )
        return self._encode_cut(self._without_generation(rendered[len(start) :]))

    def assistant(self, text: str) -> list[int]:
        """Return the ids of an assistant message of the past: its header and `text`, not closed yet."""
        return self._pieces.header_ids + self._encode_cut(self._inert(text, by_policy=True))

    def reply(self, message: Mapping[str, Any]) -> list[int]:
        """Return the ids of an assistant message as if the policy had sampled it: text and calls as the template writes
        them, and the token that closes the turn. Raises ChatTemplateError where the template writes no calls."""
        content, calls = str(message.get("content") or ""), message.get("tool_calls")
        if not calls:
            closing = self._close[0] if self._close is not None else self.tokenizer.eos_token_id
            return [*self._encode_cut(self._inert(content, by_policy=True)), closing]
        rendered = self._render([USER, {**message, "content": MARKER}], generate=False)
        _, found, tail = rendered.rpartition(MARKER)
        if not found and not content:
            # Some templates write calls in the place of a text, and not behind it.
            asked, rendered = self._render([USER]), self._render([USER, {**message, "content": ""}], generate=False)
            found, tail = asked, rendered[len(asked) :] if rendered.startswith(asked) else ""
        close = self._first_close(tail) if found else None
        if close is None:
            raise ChatTemplateError("the chat template does not write tool calls behind the text of a message")
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


def _gap(tokens: int) -> str:
    return f"\n[{tokens} tokens cut]\n"

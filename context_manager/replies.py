"""Replies: which sampled id ends a reply, and what a chat template writes after it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from context_manager.messages import calls_of
from context_manager.rendering import ANSWER, CALL, MARKER, TOOL, USER, ChatTemplateError, Marker, TemplateText

# Tokens that end a reply with tool calls, in some model families.
_CALL_ENDS = ("<|eom_id|>", "<|call|>", "<|observation|>")
# Special tokens within a call, and those that separate a reply's channels.
_CALL_MARK = re.compile(r"(?i).*(?:tool.?call|python_tag|call_id|\[args\]|function_call|tool.?sep).*")
_CHANNEL_MARKS = ("<|channel|>", "<|start|>", "<|message|>", "<|constrain|>", "<|end|>")


class Replies(TemplateText):
    def text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids; special tokens only where they mark a call (`<|python_tag|>`)."""
        marks, special = self._root._call_marks, self._root._special_ids
        if marks.isdisjoint(ids):
            return self.decode(ids, skip_special_tokens=True)
        said = ids[:-1] if self.ends_turn(ids) else ids
        shown = [token for token in said if token in marks or token not in special]
        return self.decode(shown, skip_special_tokens=False)

    def ending(self, ids: Sequence[int], text: str) -> list[int] | None:
        """Return the sampled ids at the end whose text is `text`, or None if `text` starts inside a token."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self.text(ids[middle:])) > len(text):
                low = middle + 1
            else:
                high = middle
        return list(ids[low:]) if self.text(ids[low:]) == text and text else None

    def raw_text(self, ids: Sequence[int]) -> str:
        return self.decode(ids[:-1] if self.ends_turn(ids) else ids, skip_special_tokens=False)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(number for number, token in self._added_ids.items() if token.special)

    @cached_property
    def _call_marks(self) -> frozenset[int]:
        special = {number: token.content for number, token in self._added_ids.items() if token.special}
        channels = _CHANNEL_MARKS if _CHANNEL_MARKS[0] in special.values() else ()
        return frozenset(
            number
            for number, text in special.items()
            if number not in self.stop_token_ids and (text in channels or _CALL_MARK.fullmatch(text))
        )

    @property
    def end_id(self) -> int:
        """The token that closes a turn: the chat template's, or eos if the template has no single token for it."""
        close = self._root._close
        return self.tokenizer.eos_token_id if close is None else close[0]

    @property
    def engine_stops(self) -> list[int]:
        """Ids at which an engine must be told to stop. It stops at the tokenizer's eos by itself."""
        # gpt-oss closes each channel with `<|end|>`, and the reply goes on after it.
        ends = self._root.stop_token_ids | ({self.end_id} - self._root._call_marks)
        return sorted(ends - {self.tokenizer.eos_token_id})

    def ends_turn(self, ids: Sequence[int]) -> bool:
        """Whether the last sampled id ends the reply; otherwise the token limit cut it off."""
        if not ids:
            return False
        called = bool(self.tools) and self.closes_turn(ids, [CALL])
        return ids[-1] in self.stop_token_ids or called or self.closes_turn(ids)

    def closes_turn(self, ids: Sequence[int], calls: Sequence[Mapping[str, Any]] = ()) -> bool:
        """Whether the last sampled id is the template's close of an assistant turn with these calls."""
        if not ids:
            return False
        # A reply may end with another stop token (`<|endoftext|>`): the template's close then follows it. Some families
        # close a turn with calls with a token of its own (`<|eom_id|>`, `<|call|>`, `<|observation|>`).
        if not (calls or self.tools):
            return self._close is not None and ids[-1] == self._close[0]
        if self._root._closes_with_next:
            close = self._root._call_close if calls else self._close
            return close is not None and ids[-1] == close[0]
        closes = (self._close, self._root._call_close)
        return ids[-1] in self._root._call_ends or any(close is not None and ids[-1] == close[0] for close in closes)

    @cached_property
    def _call_ends(self) -> dict[int, str]:
        return {number: token.content for number, token in self._added_ids.items() if token.content in _CALL_ENDS}

    @cached_property
    def _closes_with_next(self) -> bool:
        """Whether the header of the next message (`<|user|>`) ends a turn."""
        rendered = self._render([USER, {"role": "assistant", "content": MARKER}], generate=False)
        return not rendered.rpartition(MARKER)[2].strip()

    @cached_property
    def _call_close(self) -> tuple[int, str] | None:
        """Id and text of the token that closes a turn with calls, or None if the template has none."""
        try:
            tail = self._after([ANSWER], [CALL])
        except ChatTemplateError:
            return None
        found = self._first_close(tail)
        return found and (found[1], found[2])

    def _first_close(self, tail: str) -> tuple[int, int, str] | None:
        found = [(tail.find(text), number, text) for number, text in self._closes if text and text in tail]
        return min(found, default=None)

    @cached_property
    def _closes(self) -> list[tuple[int, str]]:
        stops = {number: self.decode([number]) for number in self.stop_token_ids}
        return [*(stops | self._root._call_ends).items(), *([] if self._close is None else [self._close])]

    @cached_property
    def _close(self) -> tuple[int, str] | None:
        """Id and text of the token that closes an assistant turn, or None if it is not a single token."""
        _, found, tail = self._render([USER, {"role": "assistant", "content": MARKER}, USER]).rpartition(MARKER)
        first = self.encode(tail)[:1] if found else []
        text = self.decode(first, skip_special_tokens=False)
        special = first and (first[0] in self.stop_token_ids or not self.decode(first, skip_special_tokens=True))
        return (first[0], text) if special and tail.startswith(text) else None

    def as_sampled(self, text: str, calls: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the ids of a reply written by the template, as the policy would have sampled it."""
        ends = [text.rfind(end) + len(end) for _, end in self._closes if end and end in text]
        close = self._root._call_close if calls else self._close
        return self.encode(text[: max(ends)] if ends else text + (close[1] if close else ""))

    def _after_assistant(
        self, messages: Sequence[dict[str, Any]], closed: bool, calls: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        answered = bool(calls) and any(message["role"] == "tool" for message in messages)
        tail = self._after(messages, calls if answered else ())
        for role in {str(message["role"]) for message in messages}:
            if (role, answered) not in self._shown:
                self._check_shown(role, answered)
        if calls:
            return self._after_calls(tail, closed, answered)
        if closed:
            if self._close is None or not tail.startswith(self._close[1]):
                raise ChatTemplateError(
                    f"the chat template closes an assistant message with {tail[:16]!r}, which is not a single token"
                )
            tail = tail[len(self._close[1]) :]
        return tail

    def _after(self, messages: Sequence[dict[str, Any]], calls: Sequence[Mapping[str, Any]]) -> str:
        # Tools may be long, so they are only rendered where they change the result (Mistral puts them into the last
        # user message).
        return self._tail(messages, calls, without_tools=bool(self.tools) and self._root._tools_stay_in_front)

    @cached_property
    def _tools_stay_in_front(self) -> bool:
        offered, plain = self.for_tools([TOOL]), {"role": "tool", "content": "-"}
        after: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
            ([USER], []),
            ([plain], []),
            ([USER], [CALL]),
            ([ANSWER], [CALL]),
            ([ANSWER, USER], [CALL]),
        ]
        for messages, calls in after:
            tails = []
            for bare in (True, False):
                try:
                    tails.append(offered._tail(messages, calls, without_tools=bare))
                except ChatTemplateError:
                    tails.append("")
            if tails[0] != tails[1]:
                return False
        return True

    def _tail(
        self, messages: Sequence[dict[str, Any]], calls: Sequence[Mapping[str, Any]], *, without_tools: bool
    ) -> str:
        said: dict[str, Any] = {"role": "assistant", "content": MARKER}
        if calls:
            try:
                calling = {**said, "tool_calls": self._stand_ins(calls)}
                rendered = self._render([USER, calling, *messages], without_tools=without_tools)
            except ChatTemplateError:
                if len(calls) == 1:
                    raise
                # Some templates allow only one call per reply.
                calling = {**said, "tool_calls": self._stand_ins(calls[:1])}
                rendered = self._render([USER, calling, *messages], without_tools=without_tools)
        else:
            rendered = self._render([USER, said, *messages], without_tools=without_tools)
        _, found, tail = rendered.rpartition(MARKER)
        if not found:
            raise ChatTemplateError(
                "the chat template rewrites an earlier assistant message, so a conversation cannot be continued"
            )
        return tail

    # Templates need to see the call that a tool answers, so what follows a reply is rendered after a stand-in of it.
    # The stand-in is thrown away; the reply keeps its sampled ids.
    def _stand_ins(self, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        as_text = self._root._arguments_as_text
        arguments = Marker(f'{{"a": "{MARKER}"}}') if as_text else {"a": MARKER}
        return [
            {**call, "function": {**(call.get("function") or {}), "arguments": arguments}}
            for call in calls_of({"tool_calls": calls})
        ]

    def _after_calls(self, tail: str, closed: bool, answered: bool) -> str:
        """Return the template's text after a turn with calls. The turn's closing token is left out if the policy
        sampled it."""
        found = self._first_close(tail)
        if found is None:
            raise ChatTemplateError(
                f"the chat template goes on after a tool call with {tail[:24]!r}, where no token ends the turn, so a "
                "conversation cannot be continued there"
            )
        place, _, text = found
        # A close that is the next message's header depends on that message.
        own = not self._root._closes_with_next or answered
        return tail[place + len(text) :] if closed and own else tail[place:]

    def _check_shown(self, role: str, answered: bool) -> None:
        if answered and role == "tool":
            shown = self._after_calls(self._after([{**ANSWER, "content": "seen"}], [CALL]), True, True)
        else:
            shown = self._render([USER, {"role": "assistant", "content": "-"}, {"role": role, "content": "seen"}])
        if "seen" not in shown:
            mend = "tool_format to none" if answered and role == "tool" else "observation_role to one it shows"
            raise ChatTemplateError(
                f"the chat template leaves out messages of the role {role}: set actor_rollout_ref.rollout.{mend}"
            )
        self._shown.add((role, answered))

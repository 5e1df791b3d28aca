"""Live timeline: the mutable conversation behind the next prompt. Messages are immutable; an edit replaces one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from context_manager.chat import ChatRenderer
from context_manager.messages import as_user, calls_of, is_answer, paired, text_of, with_calls


@dataclass(frozen=True, slots=True, eq=False)
class TimelineMessage:
    number: int  # from 1 after the opening; an edited message keeps it
    role: str
    content: str
    step: int = -1  # the call that sampled it
    ids: Sequence[int] | None = None  # of a reply, its header included; None for other messages
    closed: bool = False  # whether `ids` hold the closing token
    pinned: bool = False  # protected from dropping
    fields: Mapping[str, Any] = field(default_factory=dict)  # `tool_calls`; of an answer, `tool_call_id` and `name`

    def to_dict(self) -> dict[str, Any]:
        return {**self.fields, "role": self.role, "content": self.content}

    @property
    def calls(self) -> list[dict[str, Any]]:
        return calls_of(self.fields)

    @property
    def text_with_calls(self) -> str:
        return with_calls(self.content, self.calls)


# Messages after a reply: whether that is closed, the ids of its calls, the messages.
_Block = tuple[bool | None, tuple[str, ...], tuple[TimelineMessage, ...]]


class LiveTimeline:
    """The conversation of one episode. `training_opening` replaces the opening in training samples."""

    def __init__(
        self,
        renderer: ChatRenderer,
        opening: Sequence[dict[str, Any]],
        training_opening: Sequence[dict[str, Any]] | None = None,
        *,
        append_only: bool = False,
    ) -> None:
        self.renderer = renderer
        self.opening = [dict(message) for message in opening]
        self._training = None if training_opening is None else [dict(message) for message in training_opening]
        self._append_only = append_only
        self.messages: list[TimelineMessage] = []
        self.last_number = 0
        self._called: set[Any] = set()
        self._sampled: tuple[TimelineMessage, Sequence[int]] | None = None
        self.reopen(renderer)

    def reopen(self, renderer: ChatRenderer) -> None:
        """Switch to another renderer, e.g. for other tools. Replies keep their ids; all else is rendered again."""
        self.renderer = renderer
        self._generation = [] if self._append_only else renderer.generation
        render = renderer.opening if self._append_only else renderer.head
        self.opening_ids = render(self.opening)
        self.training_ids = None if self._training is None else render(self._training)
        self._seen: list[TimelineMessage] = []
        self._seen_ids = list(self.opening_ids)
        self._blocks: dict[_Block, list[int]] = {}

    @property
    def opening_length(self) -> int:
        return len(self.opening_ids) + len(self._generation)

    def add(self, message: Mapping[str, Any]) -> TimelineMessage:
        fields = {key: value for key, value in message.items() if key not in ("role", "content")}
        return self._append(TimelineMessage(self._next(), str(message["role"]), text_of(message), fields=fields))

    def said(self, sampled_ids: Sequence[int], text: str, step: int, remembered: str | None = None) -> TimelineMessage:
        """Append a reply: as it was sampled, or with the text `remembered`."""
        if remembered is not None:
            message = self._append(self._rewritten(self._next(), remembered, step))
        else:
            ids = [*([] if self._append_only else self._generation), *sampled_ids]
            closed = self.renderer.closes_turn(sampled_ids)
            message = self._append(TimelineMessage(self._next(), "assistant", text, step, ids, closed))
        self._sampled = message, sampled_ids
        return message

    def called(self, calls: Sequence[Mapping[str, Any]], content: str | None = None) -> TimelineMessage:
        """Set the last reply's tool calls and its text besides them; raises RuntimeError after another message."""
        last = self.messages[-1] if self.messages else None
        if last is None or self._sampled is None or last is not self._sampled[0]:
            raise RuntimeError("set the tool calls of a reply before another message is added")
        # The reply keeps its sampled ids; if its thought was removed, those of the rest.
        sampled = self._sampled[1]
        fields = {**last.fields, "tool_calls": [dict(call) for call in calls]} if calls else last.fields
        new = replace(last, content=last.content if content is None else content, fields=fields)
        if calls:
            whole = last.ids is not None and last.ids[len(last.ids) - len(sampled) :] == list(sampled)
            if whole:
                new = replace(new, closed=self.renderer.closes_turn(sampled, calls))
            elif (rest := self.renderer.ending(sampled, last.content)) is not None:
                ids = [*self.renderer.assistant(""), *rest]
                new = replace(new, ids=ids, closed=self.renderer.closes_turn(rest, calls))
        self._sampled = new, sampled
        self._called.update(call.get("id") for call in calls)
        return self._exchange(last, new)

    def _append(self, message: TimelineMessage) -> TimelineMessage:
        self.messages.append(message)
        return message

    def _next(self) -> int:
        self.last_number += 1
        return self.last_number

    def note(self, text: str, at: int = 0) -> TimelineMessage:
        """Insert a user message that is not the environment's, e.g. a summary."""
        message = TimelineMessage(self._next(), "user", text)
        self.messages.insert(at, message)
        return message

    def rewrite(self, message: TimelineMessage, text: str) -> TimelineMessage:
        new = replace(message, content=text)
        if message.ids is not None:
            new = replace(self._rewritten(message.number, text, message.step), pinned=message.pinned)
        return self._exchange(message, new)

    def exchange_of(self, message: TimelineMessage) -> list[TimelineMessage]:
        """Return the reply with tool calls and its answers that a message belongs to, or the message alone."""
        if not message.calls and not is_answer(message.to_dict()):
            return [message]
        first = self.messages.index(message)
        while first > 0 and is_answer(self.messages[first].to_dict()):
            first -= 1
        ids = {call.get("id") for call in self.messages[first].calls}
        answers = []
        for other in self.messages[first + 1 :]:
            if not is_answer(other.to_dict()):
                break
            answers.append(other)
        paired_with = [one for one in answers if one.fields["tool_call_id"] in ids]
        return [self.messages[first], *paired_with] if message in (self.messages[first], *paired_with) else [message]

    def pin(self, message: TimelineMessage, pinned: bool = True) -> TimelineMessage:
        return message if message.pinned == pinned else self._exchange(message, replace(message, pinned=pinned))

    def drop(self, messages: Collection[TimelineMessage]) -> None:
        """Remove messages, and with them answers of removed calls and calls of removed answers."""
        gone = {other for message in messages if message in self.messages for other in self.exchange_of(message)}
        self.messages = [message for message in self.messages if message not in gone]

    def turns(self) -> list[list[TimelineMessage]]:
        turns: list[list[TimelineMessage]] = []
        for message in self.messages:
            if message.ids is not None:
                turns.append([message])
            elif turns:
                turns[-1].append(message)
        return turns

    def older(self, keep: int) -> list[TimelineMessage]:
        """Return all but the newest `keep` turns, without pinned messages and their calls and answers."""
        turns = self.turns()
        older = [m for turn in turns[: max(len(turns) - keep, 0)] if not turn[0].pinned for m in turn]
        kept = {other for m in older if m.pinned for other in self.exchange_of(m)}
        return [m for m in older if m not in kept]

    def _rewritten(self, number: int, text: str, step: int) -> TimelineMessage:
        return TimelineMessage(number, "assistant", text, step, self.renderer.assistant(text))

    def _exchange(self, old: TimelineMessage, new: TimelineMessage) -> TimelineMessage:
        self.messages[self.messages.index(old)] = new
        return new

    def sizes(self) -> dict[TimelineMessage, int]:
        """Return the approximate tokens of each message in the last prompt."""
        sizes = {message: len(message.ids) for message in self.messages if message.ids is not None}
        # Messages rendered together share their tokens in proportion to their lengths.
        for (_, _, run), ids in self._blocks.items():
            chars = sum(len(message.content) + 1 for message in run)
            sizes |= {message: round(len(ids) * (len(message.content) + 1) / chars) for message in run}
        return sizes

    def chat(
        self, messages: Iterable[TimelineMessage] | None = None, extra: Iterable[Mapping[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        shown = self.messages if messages is None else messages
        return [*self.opening, *paired([*(message.to_dict() for message in shown), *extra], self._called)]

    def prompt(self) -> list[int]:
        """Return the ids to send next, as a new list."""
        ids, run, follows = self._unchanged()
        return [*ids, *self._block(follows, run), *self._generation]

    def prompt_of(self, messages: Sequence[TimelineMessage], extra: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the prompt of some messages plus `extra` ones that stay out of the timeline."""
        ids, follows, run = list(self.opening_ids), None, list[TimelineMessage]()
        for message in messages:
            if message.ids is None:
                run.append(message)
                continue
            ids += self._block(follows, run)
            ids += message.ids
            follows, run = message, []
        asked = [TimelineMessage(0, str(one["role"]), text_of(one)) for one in extra]
        return [*ids, *self._block(follows, [*run, *asked], keep=not asked), *self._generation]

    def _unchanged(self) -> tuple[list[int], list[TimelineMessage], TimelineMessage | None]:
        """Return the ids up to the last reply, the messages after it, and that reply."""
        seen = len(self._seen)
        # Nothing was edited in most turns: then only new messages are rendered.
        if self.messages[:seen] != self._seen:
            self._seen, self._seen_ids, seen = [], list(self.opening_ids), 0
            kept = set(self.messages)
            self._blocks = {key: ids for key, ids in self._blocks.items() if kept.issuperset(key[2])}
        ids, follows, run = self._seen_ids, self._seen[-1] if self._seen else None, list[TimelineMessage]()
        for message in self.messages[seen:]:
            if message.ids is None:
                run.append(message)
                continue
            ids += self._block(follows, run)
            ids += message.ids
            self._seen += [*run, message]
            follows, run = message, []
        return ids, run, follows

    def _block(
        self, follows: TimelineMessage | None, run: Sequence[TimelineMessage], *, keep: bool = True
    ) -> list[int]:
        if follows is None and not run:
            return []
        if follows is None and self._append_only:
            raise ValueError("an append-only timeline takes no message before the first reply: put it into the opening")
        closed = None if follows is None else follows.closed
        calls = [] if follows is None else follows.calls
        key = closed, tuple(str(call.get("id")) for call in calls), tuple(run)
        if (ids := self._blocks.get(key)) is None:
            said = [self._answering(message.to_dict(), calls) for message in run]
            ids = (
                self.renderer.continuation(said, closed=bool(closed), calls=calls)
                if self._append_only
                else self.renderer.follow(said, closed=closed, calls=calls)
            )
            if keep and run:
                self._blocks[key] = ids
        return ids

    def _answering(self, said: dict[str, Any], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        # Chat templates refuse an answer whose call is not shown.
        orphan = is_answer(said) and said["tool_call_id"] in self._called - {call.get("id") for call in calls}
        return as_user(said) if orphan else said

"""The live context timeline: the mutable conversation as the policy will next see it.

A template edits `messages`, a plain list; a message itself never changes, an edit puts another one in its place.
`prompt` turns the list into token ids. What stands unchanged since the last prompt is not rendered again, and each
message is tokenised once: sampled replies keep the ids that were sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from context_manager.chat import ChatRenderer


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One message of the live timeline.

    `number` counts the messages of an episode after its opening, from 1; a message that replaces another has its
    number. For what the policy said, `step` is the call that sampled it, `ids` are its tokens as they stand in prompts,
    its header included, and `closed` says that they hold the turn's closing token. For all others `ids` is None. A
    `pinned` message is not for dropping.
    """

    number: int
    role: str
    content: str
    step: int = -1
    ids: Sequence[int] | None = None
    closed: bool = False
    pinned: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the message as a chat template takes it."""
        return {**self.fields, "role": self.role, "content": self.content}


class LiveTimeline:
    """The conversation of one episode.

    Args:
        renderer: of the policy's chat template.
        opening: the messages that the policy begins with; they are never edited.
        training_opening: the messages that stand in their place in training samples; None: the same.
        append_only: whether nothing is ever edited, so that any chat template will do that can be continued.
    """

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
        self._append_only = append_only
        self._generation = [] if append_only else renderer.generation
        render = renderer.opening if append_only else renderer.head
        self.opening_ids = render(self.opening)
        self.training_ids = None if training_opening is None else render(training_opening)
        self.messages: list[Message] = []
        self.last_number = 0
        self._seen: list[Message] = []
        self._seen_ids = list(self.opening_ids)
        self._blocks: dict[tuple[bool | None, tuple[Message, ...]], list[int]] = {}

    @property
    def opening_length(self) -> int:
        """The length of the first prompt: the opening and the generation prompt."""
        return len(self.opening_ids) + len(self._generation)

    # ---- growing ----

    def add(self, message: Mapping[str, Any]) -> Message:
        """Append what somebody else than the policy says."""
        fields = {key: value for key, value in message.items() if key not in ("role", "content")}
        return self._append(Message(self._next(), str(message["role"]), str(message["content"]), fields=fields))

    def said(self, sampled_ids: Sequence[int], text: str, step: int, remembered: str | None = None) -> Message:
        """Append what the policy said: as it was sampled, or, with `remembered`, as that text."""
        if remembered is not None:
            return self._append(self._rewritten(self._next(), remembered, step))
        ids = [*([] if self._append_only else self._generation), *sampled_ids]
        return self._append(Message(self._next(), "assistant", text, step, ids, self.renderer.closes_turn(sampled_ids)))

    def _append(self, message: Message) -> Message:
        self.messages.append(message)
        return message

    def _next(self) -> int:
        self.last_number += 1
        return self.last_number

    # ---- editing ----

    def note(self, text: str, at: int = 0) -> Message:
        """Insert a message of the user's role that nobody said (a summary, say) at a place in `messages`."""
        message = Message(self._next(), "user", text)
        self.messages.insert(at, message)
        return message

    def rewrite(self, message: Message, text: str) -> Message:
        """Put another text in a message's place."""
        new = replace(message, content=text)
        if message.ids is not None:
            new = replace(self._rewritten(message.number, text, message.step), pinned=message.pinned)
        return self._exchange(message, new)

    def pin(self, message: Message, pinned: bool = True) -> Message:
        """Say whether a message is to be kept when others are dropped."""
        return message if message.pinned == pinned else self._exchange(message, replace(message, pinned=pinned))

    def drop(self, messages: Collection[Message]) -> None:
        """Take messages out."""
        gone = set(messages)
        self.messages = [message for message in self.messages if message not in gone]

    def turns(self) -> list[list[Message]]:
        """Return the turns: each what the policy said, and what was said to it before it spoke again."""
        turns: list[list[Message]] = []
        for message in self.messages:
            if message.ids is not None:
                turns.append([message])
            elif turns:
                turns[-1].append(message)
        return turns

    def older(self, keep: int) -> list[Message]:
        """Return the messages of all turns but the newest `keep`; what is pinned is left out, with the answers to
        it."""
        turns = self.turns()
        return [m for turn in turns[: max(len(turns) - keep, 0)] if not turn[0].pinned for m in turn if not m.pinned]

    def _rewritten(self, number: int, text: str, step: int) -> Message:
        return Message(number, "assistant", text, step, self.renderer.assistant(text))

    def _exchange(self, old: Message, new: Message) -> Message:
        self.messages[self.messages.index(old)] = new
        return new

    # ---- showing ----

    def sizes(self) -> dict[Message, int]:
        """Return about how many tokens each message of the last prompt had there, what stands around it included.

        Messages that were rendered together share their tokens by their lengths.
        """
        sizes = {message: len(message.ids) for message in self.messages if message.ids is not None}
        for (_, run), ids in self._blocks.items():
            chars = sum(len(message.content) + 1 for message in run)
            sizes |= {message: round(len(ids) * (len(message.content) + 1) / chars) for message in run}
        return sizes

    def chat(
        self, messages: Iterable[Message] | None = None, extra: Iterable[Mapping[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        """Return the conversation as chat messages, for models that take those instead of token ids."""
        shown = self.messages if messages is None else messages
        return [*self.opening, *(message.to_dict() for message in shown), *(dict(message) for message in extra)]

    def prompt(self) -> list[int]:
        """Return the ids to send next: opening, messages, generation prompt. The list is the caller's."""
        ids, run, follows = self._unchanged()
        return [*ids, *self._block(follows, run), *self._generation]

    def prompt_of(self, messages: Sequence[Message], extra: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the ids of a prompt of some of the messages, and `extra` ones after them that are not part of the
        timeline."""
        ids, follows, run = list(self.opening_ids), None, list[Message]()
        for message in messages:
            if message.ids is None:
                run.append(message)
                continue
            ids += self._block(follows, run)
            ids += message.ids
            follows, run = message, []
        asked = [Message(0, str(one["role"]), str(one["content"])) for one in extra]
        return [*ids, *self._block(follows, [*run, *asked], keep=not asked), *self._generation]

    def _unchanged(self) -> tuple[list[int], list[Message], Message | None]:
        """Return the ids up to the policy's last message, that message, and the messages after it."""
        seen = len(self._seen)
        if self.messages[:seen] != self._seen:
            self._seen, self._seen_ids, seen = [], list(self.opening_ids), 0
            kept = set(self.messages)
            self._blocks = {key: ids for key, ids in self._blocks.items() if kept.issuperset(key[1])}
        ids, follows, run = self._seen_ids, self._seen[-1] if self._seen else None, list[Message]()
        for message in self.messages[seen:]:
            if message.ids is None:
                run.append(message)
                continue
            ids += self._block(follows, run)
            ids += message.ids
            self._seen += [*run, message]
            follows, run = message, []
        return ids, run, follows

    def _block(self, follows: Message | None, run: Sequence[Message], *, keep: bool = True) -> list[int]:
        """Return the ids of what was said after a message of the policy's, or after the opening."""
        if follows is None and not run:
            return []
        if follows is None and self._append_only:
            raise ValueError(
                "an append-only timeline has nothing between its opening and the first reply: say it in the opening"
            )
        closed = None if follows is None else follows.closed
        key = closed, tuple(run)
        if (ids := self._blocks.get(key)) is None:
            said = [message.to_dict() for message in run]
            ids = (
                self.renderer.continuation(said, closed=bool(closed))
                if self._append_only
                else self.renderer.follow(said, closed=closed)
            )
            if keep and run:
                self._blocks[key] = ids
        return ids

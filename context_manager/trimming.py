"""What the templates share that keep the conversation short: when to step in, and which turns are older ones.

`trigger` is the prompt length at which they step in; what they leave alone are the newest turns (`context_keep_turns`,
fewer if those do not fit), pinned turns and the opening. The newest turn is never touched: the policy has not answered
it yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from context_manager.samples import runs
from context_manager.template import ContextTemplate, Message, SideCall
from context_manager.thoughts import STYLES, without_thought

KEEP_TURNS = 3


class TrimmingTemplate(ContextTemplate):
    """A template that shortens the timeline once a prompt would exceed the trigger."""

    reads: ClassVar[frozenset[str]] = frozenset(
        {"context_trigger_tokens", "context_keep_turns", "summary_tokens", "train_context_calls"}
    )

    def start(
        self, messages: Sequence[Mapping[str, Any]], training_opening: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Take the opening messages, and refuse at once a chat template that what stands in the place of older turns
        cannot follow."""
        super().start(messages, training_opening)
        self.renderer.follow([{"role": "user", "content": "-"}], closed=None)

    @property
    def trigger(self) -> int:
        """The longest prompt that is left alone: what was set, or three quarters of the room."""
        wanted = self.options.context_trigger_tokens
        return self.room * 3 // 4 if wanted is None else min(wanted, self.room)

    @property
    def note_tokens(self) -> int:
        """The most tokens of a summary or note: what was set, or an eighth of the room, and no more than a reply may
        have."""
        return min(self.options.summary_tokens or max(self.room // 8, 16), self.limits.max_new_tokens)

    @property
    def too_long(self) -> bool:
        """Whether the next prompt would exceed the trigger."""
        return len(self.timeline.prompt()) > self.trigger

    def older_turns(self, reserve: int = 0) -> list[Message]:
        """Return the messages of the turns that may go, so that the rest and `reserve` tokens are within the trigger.

        As many of the newest turns are left alone as were asked for and fit, and one at least.
        """
        wanted = KEEP_TURNS if self.options.context_keep_turns is None else self.options.context_keep_turns
        older: list[Message] = []
        for keep in range(max(wanted, 1), 0, -1):
            older = self.timeline.older(keep)
            gone = set(older)
            rest = [message for message in self.timeline.messages if message not in gone]
            if older and len(self.timeline.prompt_of(rest)) + reserve <= self.trigger:
                break
        return older

    def fit(self) -> None:
        """Drop older turns to be within the trigger, and pinned ones before the context is full. The newest turn
        stays."""
        if self.too_long:
            self._drop(self.older_turns())
        pinned = [message for message in self.timeline.messages if message.pinned]
        if pinned and len(self.timeline.prompt()) > self.room:
            for message in pinned:
                self.timeline.pin(message, False)
            self._drop(self.older_turns())

    def beyond_thoughts(self, text: str) -> str:
        """Return what the policy said about its context, without what it thought before it."""
        return without_thought(text, STYLES["think"], inside=self.renderer.opens_thought)

    def _drop(self, messages: list[Message]) -> None:
        if messages:
            self.timeline.drop(messages)
            self.note_edit("drop", messages)

    def policy_call(self, kind: str, request: str, messages: Sequence[Message]) -> SideCall | None:
        """Return a call of the policy on some of the messages with a request after them, or None if it does not fit."""
        asked: dict[str, Any] = {"role": "user", "content": request}
        prompt_ids = self.timeline.prompt_of(messages, [asked])
        if len(prompt_ids) + self.note_tokens > self.total:
            return None
        return SideCall(kind, self.timeline.chat(messages, [asked]), self.note_tokens, prompt_ids, runs(messages))

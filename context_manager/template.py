"""The base of every context template: it edits what the policy will see next, and records what the engine saw.

Two structures carry it (paper 2.5). The *live timeline* is the mutable conversation as the policy will next see it
(`timeline.py`). The *snapshots* are the model calls, each frozen as it happened (`samples.py`). Training samples come
from the snapshots alone, so that what is trained on is what was sampled, whatever a template does to the timeline.

A template is a subclass that overrides some of the hooks at the end of the class. It calls no model: where it wants one
asked (for a summary, say) it says so in `housekeeping`, and whoever runs the episode makes the call, records it and
brings the answer to `settle`. `CausalTemplate` overrides none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from agentevolver.types import TrainingSample
from context_manager.chat import ChatRenderer
from context_manager.messages import is_answer, text_of
from context_manager.samples import UNTOUCHED, Opening, Runs, SampleLimits, SnapshotRecorder, runs
from context_manager.settings import ContextFull, ContextLimits, ContextSettings
from context_manager.timeline import LiveTimeline, Message

__all__ = ["ContextFull", "ContextLimits", "ContextSettings", "ContextTemplate", "LiveTimeline", "Message", "SideCall"]


@dataclass(frozen=True, slots=True)
class SideCall:
    """A model call that a template wants made before the next prompt.

    Args:
        kind: what it is for: the `kind` of the step that it becomes.
        messages: the call as chat messages.
        max_new_tokens: of the answer.
        prompt_ids: the same as ids, if the policy is asked.
        shown: the numbers of the messages in it.
        by: who is asked.
    """

    kind: str
    messages: list[dict[str, Any]]
    max_new_tokens: int
    prompt_ids: list[int]
    shown: Runs = ()
    by: Literal["policy", "summariser"] = "policy"


class ContextTemplate:
    """One episode's context.

    The order of calls is `start` (where there are tools, `offer` before it); then for each reply of the policy
    `housekeeping` (with `answer` or `settle` for each call that it returns), `next_prompt`, `record`, `called` where
    it called tools; after an action `observe`; at the end `samples`.

    Class attributes: `reads` names the optional keys (`settings.ContextSettings`) that the template reads;
    `append_only` says that it never edits the timeline, which makes do with chat templates that cannot be taken apart.
    """

    reads: ClassVar[frozenset[str]] = frozenset()
    append_only: ClassVar[bool] = False

    def __init__(self, renderer: ChatRenderer, limits: ContextLimits, options: ContextSettings | None = None) -> None:
        self.renderer = renderer
        self.limits = limits
        self.options = options or ContextSettings()
        self.recorder = SnapshotRecorder()
        self.messages: list[dict[str, Any]] = []
        self.edits: list[dict[str, Any]] = []
        self.dropped: Counter[str] = Counter()
        self.timeline: LiveTimeline
        self._sent: tuple[list[int], Runs] | None = None
        self._pinned = 0

    # ---- what an episode calls ----

    def offer(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Give the policy these tools (OpenAI's form) in the place of those before; none: no tools.

        Tools stand in the opening. Where others are offered during an episode, the next prompt begins with another
        opening and its calls are a training sample of their own.

        Raises:
            ContextFull: the opening with these tools exceeds `max_prompt_tokens`.
            ChatTemplateError: the chat template will not do for this context template.
        """
        self.renderer = self.renderer.for_tools(tools)
        if hasattr(self, "timeline") and self.timeline.renderer is not self.renderer:
            self.timeline.reopen(self.renderer)
            self._check_opening()

    def start(
        self, messages: Sequence[Mapping[str, Any]], training_opening: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Take the opening messages.

        Args:
            messages: what the policy sees first.
            training_opening: what stands in their place in the training samples (the same without guidance, say); None:
                the same.

        Raises:
            ContextFull: they exceed `max_prompt_tokens`.
            ChatTemplateError: the chat template will not do for this context template.
            ContentError: a message holds an image, or another content that is no text.
        """
        opening = self.opening([_text_message(message) for message in messages])
        training = (
            None if training_opening is None else self.opening([_text_message(message) for message in training_opening])
        )
        self.timeline = LiveTimeline(self.renderer, opening, training, append_only=self.append_only)
        self.messages = [dict(message) for message in opening]
        self._check_opening()

    def _check_opening(self) -> None:
        if self.timeline.opening_length > self.limits.max_prompt_tokens:
            raise ContextFull(
                f"the opening messages have {self.timeline.opening_length} tokens, data.max_prompt_length allows "
                f"{self.limits.max_prompt_tokens}"
            )

    def next_prompt(self) -> list[int]:
        """Return the ids to send next. Raises ContextFull when they and the reply's reserve do not fit."""
        self.edit()
        prompt_ids = self.timeline.prompt()
        if len(prompt_ids) > self.room:
            response = len(prompt_ids) - self.timeline.opening_length + self.limits.max_new_tokens
            total = len(prompt_ids) + self.limits.max_new_tokens
            raise ContextFull(f"the next call needs {response} response tokens and {total} in all")
        self._sent = prompt_ids, runs(self.timeline.messages)
        return list(prompt_ids)

    def record(self, sampled_ids: Sequence[int], log_probs: Sequence[float], step: int, kind: str = "action") -> str:
        """Freeze the reply to the last prompt and return its text.

        `log_probs` has one number per sampled id. Raises RuntimeError for a second reply to one prompt.
        """
        if self._sent is None:
            raise RuntimeError("record a reply after the next_prompt that it answers")
        prompt_ids, shown = self._sent
        self._sent = None
        self.recorder.record(
            prompt_ids, sampled_ids, log_probs, step=step, kind=kind, shown=shown, opening=self._opening
        )
        text = self.renderer.text(sampled_ids)
        self.messages.append({"role": "assistant", "content": text})
        remembered = self.remembered(text, sampled_ids)
        self.timeline.said(sampled_ids, text, step, None if remembered == text else remembered)
        self.replied(text)
        return text

    @property
    def _opening(self) -> Opening:
        """What the chain that a call begins is stripped of."""
        trained = self.timeline.training_ids
        return UNTOUCHED if trained is None else Opening(self.timeline.opening_ids, trained)

    def called(self, calls: Sequence[Mapping[str, Any]], content: str | None = None) -> None:
        """Say which tools the reply called that was recorded last;
        asked before `observe`, and not needed where it called none.

        The sampled ids stay as they are, a call is never rendered again. The calls are for what comes after: the close
        of the turn, the answers of the tools, and `chat` for models that take messages.

        Args:
            calls: OpenAI's `tool_calls`: `{"id", "type", "function": {"name", "arguments": JSON text}}`. The answers
                that `observe` takes (role `tool`) have their ids as `tool_call_id`.
            content: what the reply says beside its calls; None: its whole text.

        Raises:
            RuntimeError: nothing was recorded yet, or something was said since.
        """
        said = self.timeline.called(calls, None if content is None else self.action(content))
        told = self.messages[-1] if content is None else {**self.messages[-1], "content": content}
        if calls:
            told |= {"content": told["content"] if told["content"].strip() else None, "tool_calls": said.calls}
        self.messages[-1] = told

    def answer(self, call: SideCall, sampled_ids: Sequence[int], log_probs: Sequence[float], step: int) -> str:
        """Freeze the policy's answer to a side call, act on it, and return its text."""
        trained = self.options.train_context_calls is not False
        self.recorder.record(
            call.prompt_ids,
            sampled_ids,
            log_probs,
            step=step,
            kind=call.kind,
            shown=call.shown,
            trained=trained,
            opening=self._opening,
        )
        text = self.renderer.text(sampled_ids)
        self.settle(call, text)
        return text

    def observe(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Append what the environment answered, cut to the observation limit, and return that text, without what the
        template adds. The answer to a call (role `tool` with a `tool_call_id`) keeps its role and its other fields
        whatever `observation_role` is.

        Raises:
            ContentError: it is an image, or another content that is no text.
        """
        role, texts = self.options.observation_role, []
        for message in messages:
            clipped = {
                **message,
                "content": self.renderer.clip(text_of(message), self.limits.max_observation_tokens),
            }
            if role is not None and clipped["role"] in ("user", "tool") and not is_answer(clipped):
                clipped["role"] = role
            shown = self.shown(clipped, self.timeline.last_number + 1)
            self.timeline.add(shown)
            self.messages.append(shown)
            texts.append(clipped["content"])
        return "\n".join(texts)

    def tell(self, text: str) -> None:
        """Append an instruction of the agent flow's, as the user would give it: to what the user said just before, if
        that is the last message, since many chat templates want the roles to alternate."""
        last = self.timeline.messages[-1] if self.timeline.messages else None
        if last is not None and last.role == "user" and self.messages[-1]["content"] == last.content:
            message = {**self.messages.pop(), "content": f"{last.content}\n\n{text}"}
            self.timeline.rewrite(last, message["content"])
        else:
            message = {"role": "user", "content": text}
            self.timeline.add(message)
        self.messages.append(message)

    def pin(self) -> None:
        """Keep the policy's last message when others are dropped, and no longer the one that was kept before. Raises
        RuntimeError if it has not spoken yet."""
        said = [message for message in self.timeline.messages if message.ids is not None]
        if not said:
            raise RuntimeError("nothing to pin: the policy has not spoken yet")
        before = [message for message in self.timeline.messages if message.number == self._pinned]
        for message in before:
            self.timeline.pin(message, False)
        self._pinned = self.timeline.pin(said[-1]).number

    def chat(self) -> list[dict[str, Any]]:
        """Return the last prompt as chat messages."""
        return self.timeline.chat()

    def samples(self) -> list[TrainingSample]:
        """Return the training samples, in order; empty if the policy never spoke.
        `dropped` then counts those left out, by name."""
        limits = SampleLimits(
            self.limits.max_prompt_tokens,
            self.limits.max_response_tokens,
            self.options.max_samples_per_trajectory,
            self.options.sample_choice or "spread",
        )
        samples, self.dropped = self.recorder.samples(limits, self.timeline.opening_ids, self.timeline.training_ids)
        return samples

    # ---- what templates use ----

    @property
    def room(self) -> int:
        """The longest prompt that leaves the reserve of a reply."""
        return self.total - self.limits.max_new_tokens

    @property
    def total(self) -> int:
        """The most tokens that a prompt and its reply may have together."""
        return min(self.limits.max_model_len, self.timeline.opening_length + self.limits.max_response_tokens)

    def note_edit(self, kind: str, messages: Sequence[Message], text: str = "") -> None:
        """Write down, for the trajectory's record, what was done to the timeline."""
        edit = {
            "calls": len(self.recorder.snapshots),
            "kind": kind,
            "messages": [list(run) for run in runs(messages)],
            "text": text,
        }
        self.edits.append(edit)

    # ---- hooks: what a template may override ----

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the opening messages as they shall be shown; the training opening passes here too."""
        return messages

    def shown(self, message: dict[str, Any], number: int) -> dict[str, Any]:
        """Return what the environment said as it shall be shown; `number` is the one that it gets in the timeline."""
        return message

    def remembered(self, text: str, sampled_ids: Sequence[int]) -> str:
        """Return a reply as later prompts show it: the same text keeps the ids that were sampled."""
        return text

    def action(self, text: str) -> str:
        """Return the part of a reply that the environment is given."""
        return text

    def replied(self, text: str) -> None:
        """React to a reply, which now is the timeline's last message."""

    def edit(self) -> None:
        """Change the timeline before a prompt is made of it."""

    def housekeeping(self) -> SideCall | None:
        """Return a call that must be made before the next prompt, or None. Asked again after each that was settled."""
        return None

    def settle(self, call: SideCall, text: str) -> None:
        """Act on the answer to a side call."""


def _text_message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": text_of(message)}


class CausalTemplate(ContextTemplate):
    """One growing conversation, one training sample a trajectory: every prompt is the previous prompt, the ids sampled
    after it, and the tokens of what came next. No id is computed twice."""

    append_only = True

"""Base class of context templates: edits what the policy sees next, and records what the engine saw (paper, 2.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from agentevolver.types import TrainingSample
from context_manager.chat import ChatRenderer
from context_manager.messages import is_answer, text_of
from context_manager.samples import UNTOUCHED, ChainOpening, Runs, SampleLimits, SnapshotRecorder, runs
from context_manager.settings import ContextFull, ContextLimits, ContextSettings
from context_manager.timeline import LiveTimeline, TimelineMessage

__all__ = [
    "ContextFull",
    "ContextLimits",
    "ContextSettings",
    "ContextTemplate",
    "LiveTimeline",
    "SideCall",
    "TimelineMessage",
]


@dataclass(frozen=True, slots=True)
class SideCall:
    """A model call that a template needs before the next prompt, e.g. for a summary."""

    kind: str  # of the step that it becomes
    messages: list[dict[str, Any]]
    max_new_tokens: int
    prompt_ids: list[int]  # if the policy is asked
    shown: Runs = ()  # numbers of the messages in it
    by: Literal["policy", "summariser"] = "policy"


class ContextTemplate:
    """The context of one episode. A subclass overrides hooks at the end of this class.

    Order of calls: `offer` if there are tools, `start`; then for each reply `housekeeping` (with `answer` or `settle`
    for each call it returns), `next_prompt`, `record`, `called` if tools were called, `observe` after an action; at the
    end `samples`.
    """

    reads: ClassVar[frozenset[str]] = frozenset()  # optional keys of `ContextSettings`
    append_only: ClassVar[bool] = False  # never edits, so chat templates need not be taken apart

    def __init__(self, renderer: ChatRenderer, limits: ContextLimits, options: ContextSettings | None = None) -> None:
        self.renderer = renderer
        self.limits = limits
        self.options = options or ContextSettings()
        # The only source of training samples: training uses what was sampled, whatever a template edits.
        self.recorder = SnapshotRecorder()
        self.messages: list[dict[str, Any]] = []
        self.edits: list[dict[str, Any]] = []
        self.dropped: Counter[str] = Counter()
        self.timeline: LiveTimeline
        self._sent: tuple[list[int], Runs] | None = None
        self._pinned = 0

    def offer(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Replace the policy's tools (OpenAI's form). They are part of the opening, so a change begins another sample.

        Raises ContextFull if the opening exceeds `max_prompt_tokens`, and ChatTemplateError.
        """
        self.renderer = self.renderer.for_tools(tools)
        if hasattr(self, "timeline") and self.timeline.renderer is not self.renderer:
            self.timeline.reopen(self.renderer)
            self._check_opening()

    def start(
        self, messages: Sequence[Mapping[str, Any]], training_opening: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Set the opening messages; `training_opening` replaces them in training samples.

        Raises ContextFull if they exceed `max_prompt_tokens`, ChatTemplateError, ContentError.
        """
        opening = self.opening([_text_message(message) for message in messages])
        training = (
            None if training_opening is None else self.opening([_text_message(message) for message in training_opening])
        )
        self.messages = [dict(message) for message in opening]
        if self.renderer.overflows(opening, self.limits.max_prompt_tokens):
            most = self.limits.max_prompt_tokens
            raise ContextFull(f"the opening messages have far more tokens than data.max_prompt_length={most}")
        self.timeline = LiveTimeline(self.renderer, opening, training, append_only=self.append_only)
        self._check_opening()

    def _check_opening(self) -> None:
        if self.timeline.opening_length > self.limits.max_prompt_tokens:
            raise ContextFull(
                f"the opening messages have {self.timeline.opening_length} tokens, data.max_prompt_length allows "
                f"{self.limits.max_prompt_tokens}"
            )

    def next_prompt(self) -> list[int]:
        """Return the ids to send next. Raises ContextFull if they and a reply do not fit."""
        self.edit()
        prompt_ids = self.timeline.prompt()
        if len(prompt_ids) > self.room:
            response = len(prompt_ids) - self.timeline.opening_length + self.limits.max_new_tokens
            total = len(prompt_ids) + self.limits.max_new_tokens
            raise ContextFull(f"the next call needs {response} response tokens and {total} in all")
        self._sent = prompt_ids, runs(self.timeline.messages)
        return list(prompt_ids)

    def record(self, sampled_ids: Sequence[int], log_probs: Sequence[float], step: int, kind: str = "action") -> str:
        """Record the reply to the last prompt and return its text; raises RuntimeError for a second reply."""
        if self._sent is None:
            raise RuntimeError("there is no prompt that this reply answers: call next_prompt first")
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
    def _opening(self) -> ChainOpening:
        trained = self.timeline.training_ids
        return UNTOUCHED if trained is None else ChainOpening(self.timeline.opening_ids, trained)

    def called(self, calls: Sequence[Mapping[str, Any]], content: str | None = None) -> None:
        """Set the tool calls of the last reply (OpenAI's `tool_calls`), before `observe`; `content` is its other text.

        Raises RuntimeError if the last message is not a reply.
        """
        said = self.timeline.called(calls, None if content is None else self.action(content))
        told = self.messages[-1] if content is None else {**self.messages[-1], "content": content}
        if calls:
            told |= {"content": told["content"] if told["content"].strip() else None, "tool_calls": said.calls}
        self.messages[-1] = told

    def answer(self, call: SideCall, sampled_ids: Sequence[int], log_probs: Sequence[float], step: int) -> str:
        """Record the policy's answer to a side call, apply it, and return its text."""
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
        """Append the environment's answer, cut to the observation limit, and return that text; raises ContentError."""
        role, texts = self.options.observation_role, []
        for message in messages:
            clipped = {
                **message,
                "content": self.renderer.clip(text_of(message), self.limits.max_observation_tokens),
            }
            # An answer to a call must keep its role.
            if role is not None and clipped["role"] in ("user", "tool") and not is_answer(clipped):
                clipped["role"] = role
            shown = self.shown(clipped, self.timeline.last_number + 1)
            self.timeline.add(shown)
            self.messages.append(shown)
            texts.append(clipped["content"])
        return "\n".join(texts)

    def tell(self, text: str) -> None:
        """Append an instruction as a user message."""
        last = self.timeline.messages[-1] if self.timeline.messages else None
        # Many chat templates demand alternating roles, so it is merged with a user message before it.
        if last is not None and last.role == "user" and self.messages[-1]["content"] == last.content:
            message = {**self.messages.pop(), "content": f"{last.content}\n\n{text}"}
            self.timeline.rewrite(last, message["content"])
        else:
            message = {"role": "user", "content": text}
            self.timeline.add(message)
        self.messages.append(message)

    def pin(self) -> None:
        """Protect the policy's last message and unpin the one before; raises RuntimeError if there is none."""
        said = [message for message in self.timeline.messages if message.ids is not None]
        if not said:
            raise RuntimeError("nothing to pin: the policy has not spoken yet")
        before = [message for message in self.timeline.messages if message.number == self._pinned]
        for message in before:
            self.timeline.pin(message, False)
        self._pinned = self.timeline.pin(said[-1]).number

    def chat(self) -> list[dict[str, Any]]:
        return self.timeline.chat()

    def samples(self) -> list[TrainingSample]:
        """Return the training samples; `dropped` then counts dropped samples by reason."""
        limits = SampleLimits(
            self.limits.max_prompt_tokens,
            self.limits.max_response_tokens,
            self.options.max_samples_per_trajectory,
            self.options.sample_choice or "spread",
        )
        if hasattr(self, "timeline"):  # an opening that is far too long has none
            samples, self.dropped = self.recorder.samples(limits, self.timeline.opening_ids, self.timeline.training_ids)
            return samples
        return []

    @property
    def room(self) -> int:  # of a prompt that leaves space for a reply
        return self.total - self.limits.max_new_tokens

    @property
    def total(self) -> int:
        return min(self.limits.max_model_len, self.timeline.opening_length + self.limits.max_response_tokens)

    def note_edit(self, kind: str, messages: Sequence[TimelineMessage], text: str = "") -> None:
        edit = {
            "calls": len(self.recorder.snapshots),
            "kind": kind,
            "messages": [list(run) for run in runs(messages)],
            "text": text,
        }
        self.edits.append(edit)

    # Hooks

    def opening(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the opening messages to show; also called for the training opening."""
        return messages

    def shown(self, message: dict[str, Any], number: int) -> dict[str, Any]:
        """Return an environment's message as the policy sees it."""
        return message

    def remembered(self, text: str, sampled_ids: Sequence[int]) -> str:
        """Return a reply as later prompts show it. An unchanged reply keeps its sampled ids."""
        return text

    def action(self, text: str) -> str:
        """Return the part of a reply that goes to the environment."""
        return text

    def replied(self, text: str) -> None: ...

    def edit(self) -> None: ...

    def housekeeping(self) -> SideCall | None:
        """Return a call to make before the next prompt, or None. Called again after each such call."""
        return None

    def settle(self, call: SideCall, text: str) -> None:
        """Apply the answer to a side call."""


def _text_message(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": text_of(message)}


class CausalTemplate(ContextTemplate):
    """Appends only: each prompt extends the previous one, and a trajectory is one training sample."""

    append_only = True

"""Decides whether rollouts measured the policy: how many never began, never acted, or were cut by a length limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from agentevolver.types import StopReason, Trajectory
from agentevolver.utils.errors import LaunchError, NothingMeasured

COUNTS = ("never_began", "never_acted", "cut")
_QUOTED = 120


def has_acted(steps: Iterable[tuple[str, bool]]) -> bool:
    """Return whether an action was carried out, from each step's kind and whether it was refused."""
    return any(kind == "action" and not refused for kind, refused in steps)


@dataclass(frozen=True, slots=True)
class Measured:
    """Counts of a set of rollouts. Each rollout that did not act is in exactly one of the three first counts."""

    rollouts: int = 0
    failed: int = 0  # the environment, engine or grader failed
    never_began: int = 0  # the policy was not asked once: its opening did not fit, for example
    never_acted: int = 0  # it replied, and no action was carried out
    cut: int = 0  # acted or not, the context was full before the end
    replies: int = 0
    cut_replies: int = 0
    failure: str = ""  # why the first rollout failed; likewise for the next two
    no_begin: str = ""
    refusal: str = ""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Self:
        total = cls()
        for one in trajectories:
            total += cls._of_one(one)
        return total

    @classmethod
    def _of_one(cls, one: Trajectory) -> Self:
        if one.outcome is None and not one.stop_reason.happened:
            return cls(1, failed=1, failure=one.error or one.stop_reason.value)
        cut = int(bool(one.steps) and one.stop_reason is StopReason.CONTEXT_FULL)
        replies, cut_replies = len(one.steps), sum(step.truncated for step in one.steps)
        if not one.steps:
            return cls(1, never_began=1, no_begin=one.error or one.stop_reason.value)
        actions = [step for step in one.steps if step.kind == "action"]
        if not has_acted((step.kind, step.refused) for step in one.steps):
            answer = " ".join(actions[0].observation.split())[:_QUOTED] if actions else ""
            return cls(1, never_acted=1, cut=cut, replies=replies, cut_replies=cut_replies, refusal=answer)
        return cls(1, cut=cut, replies=replies, cut_replies=cut_replies)

    def __add__(self, other: Self) -> Self:
        return type(self)(
            *(getattr(self, name) + getattr(other, name) for name in _NUMBERS),
            *(getattr(self, name) or getattr(other, name) for name in _REASONS),
        )

    @classmethod
    def of_metrics(cls, record: Mapping[str, Any], rollouts: str, prefix: str, failed: str = "failed") -> Self:
        """Read the counts back from a record of `metrics.jsonl`; 0 where an older release wrote none."""
        names = (rollouts, *(f"{prefix}{name}" for name in (failed, *COUNTS)))
        total, failures, never_began, never_acted, cut = (int(record.get(name, 0)) for name in names)
        return cls(total, failures, never_began, never_acted, cut)

    @property
    def acted(self) -> int:
        return self.rollouts - self.failed - self.never_began - self.never_acted

    @property
    def unmeasured(self) -> bool:
        return self.rollouts > 0 and self.acted <= 0

    def counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _NUMBERS}

    def metrics(self, prefix: str) -> dict[str, float]:
        return {f"{prefix}{name}": float(getattr(self, name)) for name in COUNTS}

    def remark(self) -> str:
        """Return the counts of rollouts that never began, never acted or were cut as text, "" if there are none."""
        named = {"never began": self.never_began, "never acted": self.never_acted, "cut": self.cut}
        told = ", ".join(f"{count} {name}" for name, count in named.items() if count)
        return f"{told} of {self.rollouts}" if told else ""

    def problem(self) -> str | None:
        """Return why nothing was measured and what to do, or None."""
        if not self.unmeasured:
            return None
        if self.failed == self.rollouts:
            return f"no episode could be graded: {self.failure}"
        parts = []
        if self.never_began:
            todo = ""
            if "data.max_prompt_length" in self.no_begin:
                todo = ": raise it to what the openings need, and actor_rollout_ref.rollout.max_model_len with it"
            parts.append(f"{self.never_began} never began ({self.no_begin}){todo}")
        if self.never_acted:
            said = f" (the first answer: {self.refusal})" if self.refusal else ""
            parts.append(f"{self.never_acted} had every action refused{said}: read a trajectory")
        if 2 * self.cut_replies > self.replies:
            parts.append(
                f"{self.cut_replies} of {self.replies} replies were cut: raise "
                "actor_rollout_ref.rollout.response_length"
            )
        if self.failed:
            parts.append(f"{self.failed} failed ({self.failure})" if self.failure else f"{self.failed} failed")
        return f"none of {self.rollouts} episodes acted, nothing was measured: {'; '.join(parts)}"

    def check(self) -> None:
        """Raise NothingMeasured if no rollout acted, LaunchError if all of them failed."""
        if (problem := self.problem()) is not None:
            raise LaunchError(problem) if self.failed == self.rollouts else NothingMeasured(problem)


_NUMBERS = ("rollouts", "failed", *COUNTS, "replies", "cut_replies")
_REASONS = ("failure", "no_begin", "refusal")

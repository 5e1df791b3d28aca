"""Shared data types: a task, a step, a trajectory, how it ended, and what is trained on.

Plain and immutable where that is possible, JSON-ready where it is written to disk. A trajectory that did not really
happen (the environment or the engine failed) has an outcome of None and says so in its stop reason; no number stands in
for it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple


class StopReason(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"
    MAX_STEPS = "max_steps"
    CONTEXT_FULL = "context_full"
    ENV_ERROR = "env_error"
    LLM_ERROR = "llm_error"
    GRADING_ERROR = "grading_error"
    CANCELLED = "cancelled"

    @property
    def happened(self) -> bool:
        """Whether the episode ran to an end of its own, so that it may be graded and trained on."""
        return self in (StopReason.FINISHED, StopReason.MAX_STEPS, StopReason.CONTEXT_FULL)


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do in an environment.

    `query` replaces the environment's own wording when it is set; `evaluator` names the grader; `open_query` marks a
    task that the agent made itself, which the environment starts without a goal of its own.
    """

    task_id: str
    env_type: str
    open_query: bool = False
    query: str | None = None
    ground_truth: str | None = None
    evaluator: str = "env"
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def is_validation(self) -> bool:
        """Whether it is rolled out to measure the policy, and never trained on."""
        return bool(self.metadata.get("validation"))

    @property
    def is_scout(self) -> bool:
        """Whether it is rolled out for the pool of experience alone, unguided and never trained on
        (`exp_manager.scout`)."""
        return bool(self.metadata.get("scout"))

    def scouting(self) -> Task:
        """Return the task as a scout."""
        return replace(self, metadata={**self.metadata, "scout": True})

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Task:
        """Read a task; raises TypeError for a field that a task does not have, or one that is missing."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Step:
    """One action of the agent and what the environment answered.

    `prompt_tokens` is the length of the prompt that was sent, `action_tokens` the number of tokens sampled; `truncated`
    says that the reply was cut by the token limit; times are seconds. `kind` is `action`, or what else the policy was
    asked for (`plan`, `summary`, `context`): such a step has no observation, and the environment does not count it.
    """

    index: int
    action: str
    observation: str
    reward: float
    prompt_tokens: int
    action_tokens: int
    truncated: bool
    generate_s: float
    env_s: float
    kind: str = "action"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The grade of an episode: a score in 0..1, and whether that counts as success."""

    score: float
    success: bool
    reason: str = ""


@dataclass(slots=True)
class Trajectory:
    """One rollout of one task, as it is written to `trajectories/step_<n>.jsonl`.

    `group_id` is the rollout group (all rollouts of one task in one step), `rollout_id` the number in the group.
    `outcome` is None when the rollout failed (`error` then says how) or when the policy never got to act, so that there
    is nothing to grade; a validation task on which it never got to act is not solved, with a score of 0.
    `messages` is everything that was said, as it happened; `context_edits` what the context template took out or put in
    (in `calls` the number of calls before it); `dropped_samples` counts, by name, the training samples that could not
    be used.
    """

    task: Task
    group_id: str
    rollout_id: int
    messages: list[dict[str, Any]]
    steps: list[Step]
    stop_reason: StopReason
    outcome: Outcome | None
    attempts: int = 1
    error: str = ""
    seconds: float = 0.0
    context_edits: list[dict[str, Any]] = field(default_factory=list)
    dropped_samples: dict[str, int] = field(default_factory=dict)

    @property
    def trajectory_id(self) -> str:
        """The name of this rollout: its group and its number in it."""
        return f"{self.group_id}_{self.rollout_id}"

    def to_dict(self) -> dict[str, Any]:
        """Return the trajectory as JSON-ready data."""
        return {"trajectory_id": self.trajectory_id, **asdict(self)}


class RowKey(NamedTuple):
    """The key of a training row: the rollout group, the rollout's number in it, the row's number in the rollout; sorted
    in this order."""

    group_id: str
    rollout_id: int
    row: int

    @classmethod
    def of(cls, key: str) -> RowKey:
        """Read a key as TransferQueue holds it (`<group>_<rollout>_<row>`); raises ValueError for another form."""
        group, rollout, row = key.rsplit("_", 2)
        return cls(group, int(rollout), int(row))

    @property
    def trajectory_id(self) -> str:
        """The rollout that the row belongs to, as `Trajectory.trajectory_id`."""
        return f"{self.group_id}_{self.rollout_id}"

    def __str__(self) -> str:
        return f"{self.trajectory_id}_{self.row}"


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One row of the training batch: token ids as the engine saw and sampled them.

    `response_ids`, `response_mask` (1 on sampled tokens), `log_probs` (0.0 elsewhere) and `step_ids` (the step a
    sampled token belongs to, -1 elsewhere) have one length R; `prompt_ids` has length P. A trajectory becomes one
    sample or more: `trajectory_id` names it, and `share` is this sample's part of the sampled tokens of all its
        samples.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    log_probs: list[float]
    step_ids: list[int]
    trajectory_id: str = ""
    share: float = 1.0

    @property
    def steps(self) -> list[int]:
        """The steps that it has tokens of, in order."""
        return sorted({step for step in self.step_ids if step >= 0})

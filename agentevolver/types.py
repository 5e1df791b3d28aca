"""Shared data types: a task, a step, a trajectory, how it ended, and what is trained on.

Plain and immutable where that is possible, JSON-ready where it is written to disk. A trajectory that did not really
happen (the environment or the engine failed) has an outcome of None and says so in its stop reason; no number stands in
for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

# Of a trajectory's record. A record without one is of an earlier release.
SCHEMA = 1

T = TypeVar("T")


class StopReason(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"
    MAX_STEPS = "max_steps"
    CONTEXT_FULL = "context_full"
    ENV_ERROR = "env_error"
    LLM_ERROR = "llm_error"
    GRADING_ERROR = "grading_error"
    AGENT_ERROR = "agent_error"
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
    def split(self) -> str | None:
        """The environment's split that it is of; None for one that was made by hand or synthesised."""
        return self.metadata.get("split")

    @property
    def is_validation(self) -> bool:
        """Whether it is rolled out to measure the policy, and never trained on."""
        return bool(self.metadata.get("validation"))

    @property
    def is_scout(self) -> bool:
        """Whether it is rolled out for the pool of experience alone,
        unguided and never trained on (`exp_manager.scout`)."""
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
    `action` is the reply as it was written, native tool calls included; `calls` is how many it tried (None in an
    episode without native calls), and `problems` what was wrong with those that were not carried out, one name each.
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
    calls: int | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The grade of an episode: a score in 0..1, and whether that counts as success.

    `compared` is the verdict of a second grader, {"grader", "score", "success", "reason"}, where one was asked; it
    counts for nothing but the metrics. `facts` is what the grader found out, JSON-ready, for those who know it.
    """

    score: float
    success: bool
    reason: str = ""
    compared: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data, `compared` and `facts` where there are any."""
        optional = ("compared", "facts")
        return {name: value for name, value in asdict(self).items() if name not in optional or value is not None}


@dataclass(frozen=True, slots=True)
class Reward:
    """What reward stages made of a grade once they saw the whole step: the score that is trained on, any finite number,
    and the parts it is the sum of, by name."""

    score: float
    parts: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the reward as JSON-ready data."""
        return asdict(self)


class LabelStatus(StrEnum):
    """Whether a trajectory has labels, and if not, whose doing that is."""

    LABELLED = "labelled"
    SKIPPED = "skipped"  # a skip rule said so
    FAILED = "failed"  # the judge gave no usable answer
    OFF = "off"  # nobody was to be asked


@dataclass(frozen=True, slots=True)
class Attribution:
    """The labels of a trajectory: `good` has one entry per step when `status` is LABELLED and is empty otherwise.

    `analyses` are the judge's sentences, one per step; `reason` says why there are no labels; `kind` of a failure is
    one word for the metrics; `calls`, `repairs` and tokens are what it took (0 from the cache), `seconds` from the
    outcome to the labels.
    """

    status: LabelStatus
    good: tuple[bool, ...] = ()
    analyses: tuple[str, ...] = ()
    reason: str = ""
    kind: str = ""
    cached: bool = False
    calls: int = 0
    repairs: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the attribution as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attribution:
        """Read an attribution; raises ValueError for an unknown status."""
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return _read(cls, {**given, "status": LabelStatus(data["status"])})

    @classmethod
    def off(cls, reason: str) -> Attribution:
        """Return the attribution of a trajectory that nobody was to be asked about."""
        return cls(LabelStatus.OFF, reason=reason)


NOBODY_ASKED = Attribution.off("nobody was asked")


@dataclass(frozen=True, slots=True)
class GuidanceUse:
    """Guidance of a rollout as its trajectory keeps it: whether it was wanted, and what was put before the task.

    `text` is made of the experiences `experience_ids`, `injected` is the text in its template as it stands in the
    messages, "" for a rollout that was not guided; then `problem` says why not. `keep` says that the training prompt
    has it too.
    """

    wanted: bool = False
    text: str = ""
    experience_ids: tuple[str, ...] = ()
    keep: bool = False
    problem: str = ""
    injected: str = ""

    @property
    def guided(self) -> bool:
        """Whether a text was put into the conversation."""
        return bool(self.injected)

    @property
    def stripped(self) -> bool:
        """Whether the rollout was guided and its training prompt has lost that."""
        return self.guided and not self.keep

    def to_dict(self) -> dict[str, Any]:
        """Return the five keys of a trajectory's record that tell of guidance, JSON-ready."""
        injected = {**asdict(self), "problem": ""} if self.guided else None
        if injected is not None:
            del injected["wanted"]
        return {
            "guidance": injected,
            "guided": self.guided,
            "stripped": self.stripped,
            "guidance_wanted": self.wanted,
            "guidance_problem": self.problem,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> GuidanceUse:
        """Read the guidance out of a trajectory's record."""
        injected = dict(record.get("guidance") or {})
        injected["experience_ids"] = tuple(injected.get("experience_ids", ()))
        told = {"wanted": bool(record.get("guidance_wanted")), "problem": str(record.get("guidance_problem") or "")}
        return _read(cls, {**injected, **told})


@dataclass(frozen=True, slots=True)
class CreditParts:
    """Parts of the advantages of a trajectory's steps, one number a step each: outcome + label + later.

    `outcome` is what the episode's score gives the step itself, `label` what its label, its reward or its anchor state
    gives it, `later` what the steps after it are worth. Stages of the pipeline that come after may scale the sum.
    """

    outcome: tuple[float, ...]
    label: tuple[float, ...]
    later: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepCredit:
    """Credit of a trajectory's steps: one advantage a step, the step reward it is made of where there are some, and the
    advantage's parts where its stages say them."""

    advantages: tuple[float, ...]
    step_rewards: tuple[float, ...] | None = None
    parts: CreditParts | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the credit as JSON-ready data."""
        rewards = {} if self.step_rewards is None else {"step_rewards": list(self.step_rewards)}
        parts = {} if self.parts is None else {"parts": {k: list(v) for k, v in asdict(self.parts).items()}}
        return {"advantages": list(self.advantages), **rewards, **parts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepCredit:
        """Read a credit."""
        rewards, parts = data.get("step_rewards"), data.get("parts")
        return cls(
            tuple(data["advantages"]),
            None if rewards is None else tuple(rewards),
            None if parts is None else CreditParts(*(tuple(parts[name]) for name in ("outcome", "label", "later"))),
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went wrong at a step of a failed episode, never how bad it was.

    `kind` is one of `task_manager.diagnose.KINDS`, `tool` the tool it went wrong with ("" where none can be named),
    `words` what the environment or a judge said of it.
    """

    step: int
    kind: str
    tool: str
    words: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON-ready data."""
        return asdict(self)


@dataclass(slots=True)
class Trajectory:
    """One rollout of one task, as it is written to `trajectories/step_<n>.jsonl`.

    `group_id` is the rollout group (all rollouts of one task in one step), `rollout_id` the number in the group.
    `outcome` is None when the rollout failed (`error` then says how) or when the policy never got to act, so that there
    is nothing to grade; a validation task on which it never got to act is not solved, with a score of 0.
    `messages` is everything that was said, as it happened; `context_edits` what the context template took out or put in
    (in `calls` the number of calls before it); `dropped_samples` counts, by name, the training samples that could not
    be used. `guidance` is None in a run that guides no rollout, `attribution` where nobody labels steps, `credit` where
    no step was given any. `gateway` tells of a rollout that the user's own agent played: `chains`, `calls`, fields that
    were `ignored` and requests that were `refused`, by name, how many replies were `structured` (held to a form), and
    the first `differences` between what the agent said and what it had said before; None for all others. `reward` is
    what reward stages made of the outcome's score, None where the run has none of them. `began_step` is the training
    step that it was begun for, `min_version` and `max_version` the oldest and the newest weights that sampled it, named
    by the step after which they were so; None in records of earlier releases, and where nothing was sampled. `tools` is
    what the policy could call natively, as OpenAI has it (in an agent of the user's, in its first model call); empty
    where it acts by text, and in records of earlier releases.
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
    guidance: GuidanceUse | None = None
    attribution: Attribution | None = None
    credit: StepCredit | None = None
    gateway: dict[str, Any] | None = None
    reward: Reward | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    began_step: int | None = None
    min_version: int | None = None
    max_version: int | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        """What it is trained on: the reward's score, else the outcome's; None for a rollout without an outcome."""
        if self.outcome is None:
            return None
        return self.outcome.score if self.reward is None else self.reward.score

    @property
    def guided(self) -> bool:
        """Whether guidance was put before the task."""
        return self.guidance is not None and self.guidance.guided

    @property
    def stripped(self) -> bool:
        """Whether it was guided and its training prompt has lost that."""
        return self.guidance is not None and self.guidance.stripped

    @property
    def trajectory_id(self) -> str:
        """The name of this rollout: its group and its number in it."""
        return f"{self.group_id}_{self.rollout_id}"

    def to_dict(self) -> dict[str, Any]:
        """Return the trajectory as JSON-ready data: a record of the step's file and of TransferQueue."""
        parts = ("guidance", "attribution", "credit", "gateway", "reward", "diagnoses", "tools")
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in parts}
        own |= {"task": self.task.to_dict(), "steps": [asdict(step) for step in self.steps]}
        own["outcome"] = self.outcome.to_dict() if self.outcome is not None else None
        record = {"schema": SCHEMA, "trajectory_id": self.trajectory_id, **own}
        if self.guidance is not None:
            record |= self.guidance.to_dict()
        if self.attribution is not None:
            record["attribution"] = self.attribution.to_dict()
        if self.credit is not None:
            record["credit"] = self.credit.to_dict()
        if self.gateway is not None:
            record["gateway"] = self.gateway
        if self.reward is not None:
            record["reward"] = self.reward.to_dict()
        if self.diagnoses:
            record["diagnoses"] = [one.to_dict() for one in self.diagnoses]
        if self.tools:
            record["tools"] = self.tools
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Trajectory:
        """Read a record; one without a schema is of an earlier release, whose fields are a part of today's.

        Raises:
            ValueError: its schema is newer than this release's, or it is no trajectory.
        """
        try:
            if (schema := record.get("schema", 0)) > SCHEMA:
                raise ValueError(
                    f"a trajectory has schema {schema}, this release reads up to {SCHEMA}: read it with the release "
                    "that wrote it"
                )
            told = (record.get(name) for name in ("outcome", "credit", "attribution", "reward"))
            outcome, credit, attribution, reward = told
            own = {
                "task": _read(Task, {"env_type": "", **record["task"]}),
                "group_id": str(record.get("group_id", "")),
                "rollout_id": int(record.get("rollout_id", 0)),
                "steps": [_read_step(step) for step in record["steps"]],
                "stop_reason": StopReason(record["stop_reason"]),
                "outcome": _read(Outcome, outcome) if outcome is not None else None,
                "guidance": GuidanceUse.from_dict(record) if _GUIDANCE & record.keys() else None,
                "attribution": Attribution.from_dict(attribution) if attribution else None,
                "credit": StepCredit.from_dict(credit) if credit else None,
                "reward": _read(Reward, reward) if reward else None,
                "diagnoses": tuple(_read(Diagnosis, one) for one in record.get("diagnoses") or ()),
                "tools": list(record.get("tools") or ()),
            }
            return _read(cls, {**record, **own})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a trajectory's record: {type(error).__name__}: {error}") from error


_GUIDANCE = {"guidance", "guidance_wanted"}
# What a step says of itself in a record that leaves it out.
_STEP: dict[str, Any] = {
    **{"reward": 0.0, "prompt_tokens": 0, "action_tokens": 0},
    **{"truncated": False, "generate_s": 0.0, "env_s": 0.0},
}


def _read_step(step: Mapping[str, Any]) -> Step:
    return _read(Step, {**_STEP, **step, "problems": tuple(step.get("problems", ()))})


def _read(cls: type[T], data: Mapping[str, Any]) -> T:
    """Return a dataclass of the fields that it has; raises TypeError where one is missing."""
    known = {item.name for item in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in data.items() if name in known})


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

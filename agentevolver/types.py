"""Shared data types: a task, a step, a trajectory, how it ended, and what is trained on.

Immutable where possible, JSON-ready if written to disk. A trajectory that failed (environment or engine) has the
outcome None and a stop reason that says so; no number stands in for it.
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
        """Whether the episode ran to its own end, so that it may be graded and trained on."""
        return self in (StopReason.FINISHED, StopReason.MAX_STEPS, StopReason.CONTEXT_FULL)


@dataclass(frozen=True, slots=True)
class Task:
    """A task in an environment.

    `query` replaces the environment's own wording; `evaluator` names the grader; `open_query` marks a task that the
    agent made itself, which the environment starts without a goal of its own.
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
        """The environment's split, None for a synthesised or handmade task."""
        return self.metadata.get("split")

    @property
    def is_validation(self) -> bool:
        """Whether it is rolled out to measure the policy, and never trained on."""
        return bool(self.metadata.get("validation"))

    @property
    def is_scout(self) -> bool:
        """Whether it is rolled out only for the pool of experience: unguided, never trained on
        (`exp_manager.scout`)."""
        return bool(self.metadata.get("scout"))

    def scouting(self) -> Task:
        return replace(self, metadata={**self.metadata, "scout": True})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Task:
        """Read a task; raises TypeError for an unknown or missing field."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the policy and the environment's answer. Times are seconds.

    - `prompt_tokens`, `action_tokens`: tokens sent and sampled; `truncated`: the token limit cut the reply.
    - `kind`: `action`, or `plan`, `summary`, `context`, which have no observation and are not the environment's.
    - `action`: the reply as written; `calls`: native calls that it tried, None without native calls; `problems`: what
        was
      wrong with those not carried out, one name each.
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
    """The grade of an episode: a score in 0..1, and whether that is success.

    `compared` is a second grader's verdict, {"grader", "score", "success", "reason"}, for the metrics only. `facts` is
    what the grader found out, JSON-ready.
    """

    score: float
    success: bool
    reason: str = ""
    compared: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        optional = ("compared", "facts")
        return {name: value for name, value in asdict(self).items() if name not in optional or value is not None}


@dataclass(frozen=True, slots=True)
class Reward:
    """A score after reward stages that saw the whole step: any finite number, and the named parts that it is the sum
    of."""

    score: float
    parts: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class LabelStatus(StrEnum):
    """Whether a trajectory has labels, and if not, why."""

    LABELLED = "labelled"
    SKIPPED = "skipped"  # a skip rule said so
    FAILED = "failed"  # the judge gave no usable answer
    OFF = "off"  # nobody was to be asked


@dataclass(frozen=True, slots=True)
class Attribution:
    """The labels of a trajectory: `good` has one entry per step if `status` is LABELLED and is empty otherwise.

    `analyses` are the judge's sentences, one per step; `reason` and `kind` (one word, for the metrics) say why there
    are no labels; `calls`, `repairs` and tokens are the cost (0 from the cache), `seconds` from outcome to labels.
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
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attribution:
        """Read an attribution; raises ValueError for an unknown status."""
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return _read(cls, {**given, "status": LabelStatus(data["status"])})

    @classmethod
    def off(cls, reason: str) -> Attribution:
        """Return the attribution of a trajectory that is not to be labelled."""
        return cls(LabelStatus.OFF, reason=reason)


NOBODY_ASKED = Attribution.off("nobody was asked")


@dataclass(frozen=True, slots=True)
class GuidanceUse:
    """Guidance of a rollout: whether it was wanted, and what was put before the task.

    `injected` is `text`, made of the experiences `experience_ids`, in its template as the messages have it, "" if
    unguided; then `problem` says why. `keep`: the training prompt has it too.
    """

    wanted: bool = False
    text: str = ""
    experience_ids: tuple[str, ...] = ()
    keep: bool = False
    problem: str = ""
    injected: str = ""

    @property
    def guided(self) -> bool:
        return bool(self.injected)

    @property
    def stripped(self) -> bool:
        """Whether guidance was removed from the training prompt."""
        return self.guided and not self.keep

    def to_dict(self) -> dict[str, Any]:
        """Return the five keys of a trajectory's record about guidance."""
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
        injected = dict(record.get("guidance") or {})
        injected["experience_ids"] = tuple(injected.get("experience_ids", ()))
        told = {"wanted": bool(record.get("guidance_wanted")), "problem": str(record.get("guidance_problem") or "")}
        return _read(cls, {**injected, **told})


@dataclass(frozen=True, slots=True)
class CreditParts:
    """Parts of the steps' advantages: outcome + label + later, one number a step each.

    `outcome` is the episode's score's part, `label` that of the step's label, reward or anchor state, `later` what
    later steps are worth. Later stages of the pipeline may scale the sum.
    """

    outcome: tuple[float, ...]
    label: tuple[float, ...]
    later: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepCredit:
    """Credit of a trajectory's steps: one advantage a step, and if known its step reward and parts."""

    advantages: tuple[float, ...]
    step_rewards: tuple[float, ...] | None = None
    parts: CreditParts | None = None

    def to_dict(self) -> dict[str, Any]:
        rewards = {} if self.step_rewards is None else {"step_rewards": list(self.step_rewards)}
        parts = {} if self.parts is None else {"parts": {k: list(v) for k, v in asdict(self.parts).items()}}
        return {"advantages": list(self.advantages), **rewards, **parts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepCredit:
        rewards, parts = data.get("step_rewards"), data.get("parts")
        return cls(
            tuple(data["advantages"]),
            None if rewards is None else tuple(rewards),
            None if parts is None else CreditParts(*(tuple(parts[name]) for name in ("outcome", "label", "later"))),
        )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went wrong at a step of a failed episode, never how bad it was.

    `kind` is one of `task_manager.diagnose.KINDS`, `tool` the tool's name or "", `words` what the environment or a
    judge said of it.
    """

    step: int
    kind: str
    tool: str
    words: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Trajectory:
    """One rollout of one task, as written to `trajectories/step_<n>.jsonl`.

    - `group_id`: all rollouts of one task in one step; `rollout_id`: the number in the group.
    - `outcome`: None if the rollout failed (`error` says how), or if the policy never acted; in validation that is
        unsolved
      with a score of 0.
    - `messages`: everything that was said; `context_edits`: what the context template removed or added (`calls`: calls
      before it); `dropped_samples`: unusable training samples by name.
    - `guidance`, `attribution`, `credit`, `reward`: None if the run has none of it.
    - `gateway`: of an agent of the user's: `chains`, `calls`, fields that were `ignored`, requests that were `refused`,
      `structured` replies, and the first `differences` between what the agent said and had said before.
    - `began_step`: training step that it was begun for; `min_version`, `max_version`: oldest and newest weights that
      sampled it, by the step that made them; None if nothing was sampled.
    - `tools`: what could be called natively, in OpenAI's form (for the user's agent, in its first call); empty by text.

    Records of earlier releases lack `began_step`, the versions and `tools`.
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
        """The score that is trained on: the reward's, else the outcome's, None without an outcome."""
        if self.outcome is None:
            return None
        return self.outcome.score if self.reward is None else self.reward.score

    @property
    def guided(self) -> bool:
        return self.guidance is not None and self.guidance.guided

    @property
    def stripped(self) -> bool:
        return self.guidance is not None and self.guidance.stripped

    @property
    def trajectory_id(self) -> str:
        return f"{self.group_id}_{self.rollout_id}"

    def to_dict(self) -> dict[str, Any]:
        """Return a record of the step's file and of TransferQueue."""
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
        """Read a record, one of an earlier release (without a schema) too.

        Raises ValueError if its schema is newer than this release's, or it is no trajectory.
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
    """Return a dataclass from its fields among others; raises TypeError if one is missing."""
    known = {item.name for item in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in data.items() if name in known})


class RowKey(NamedTuple):
    """Key of a training row: rollout group, rollout's number in it, row's number in the rollout; sorted in this
    order."""

    group_id: str
    rollout_id: int
    row: int

    @classmethod
    def of(cls, key: str) -> RowKey:
        """Read `<group>_<rollout>_<row>`; raises ValueError."""
        group, rollout, row = key.rsplit("_", 2)
        return cls(group, int(rollout), int(row))

    @property
    def trajectory_id(self) -> str:
        return f"{self.group_id}_{self.rollout_id}"

    def __str__(self) -> str:
        return f"{self.trajectory_id}_{self.row}"


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One row of the training batch: token ids as the engine saw and sampled them.

    `response_ids`, `response_mask` (1 on sampled tokens), `log_probs` (0.0 elsewhere) and `step_ids` (a sampled token's
    step, -1 elsewhere) have one length R; `prompt_ids` has length P. A trajectory becomes one sample or more: `share`
    is this one's part of the sampled tokens of all.
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

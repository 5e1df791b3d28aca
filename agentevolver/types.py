"""Shared data types: task, step, trajectory, and training sample. A failed rollout has the outcome None and a stop
reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

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
        """Whether the episode ended by itself, so that it may be graded and trained on."""
        return self in (StopReason.FINISHED, StopReason.MAX_STEPS, StopReason.CONTEXT_FULL)


@dataclass(frozen=True, slots=True)
class Task:
    """A task in an environment."""

    task_id: str
    env_type: str
    open_query: bool = False  # synthetic: the environment starts the task without its own goal
    query: str | None = None  # replaces the environment's own wording
    ground_truth: str | None = None
    evaluator: str = "env"  # the grader's name
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def split(self) -> str | None:
        """The environment's split, or None if the task is synthetic or handmade."""
        return self.metadata.get("split")

    @property
    def is_validation(self) -> bool:
        """Whether the task measures the policy and is never trained on."""
        return bool(self.metadata.get("validation"))

    @property
    def is_scout(self) -> bool:
        """Whether the task only fills the pool of experience: unguided, never trained on (`exp_manager.scout`)."""
        return bool(self.metadata.get("scout"))

    def scouting(self) -> Task:
        return replace(self, metadata={**self.metadata, "scout": True})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Read a task. Raises ValueError for an unknown field or a value of another type."""
        if isinstance(data, Mapping) and (unknown := sorted(map(str, data.keys() - cls.__slots__))):
            raise ValueError(f"a task has no field {unknown[0]!r}")
        return _read(cls, data)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the policy and the environment's answer. Times are seconds."""

    index: int
    action: str  # the raw reply
    observation: str
    reward: float
    prompt_tokens: int  # tokens sent
    action_tokens: int  # tokens sampled
    truncated: bool  # the token limit cut the reply
    generate_s: float
    env_s: float
    kind: str = "action"  # `action`, or `plan`, `summary`, `context`, which have no observation
    calls: int | None = None  # number of native tool calls; None if the episode has no native tools
    problems: tuple[str, ...] = ()  # one name per call that was not carried out
    refused: bool = False  # nothing of the action was carried out


@dataclass(frozen=True, slots=True)
class Outcome:
    """The grade of an episode."""

    score: float  # in 0..1
    success: bool
    reason: str = ""
    # a second grader's verdict for metrics only: {"grader", "score", "success", "reason"}
    compared: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None  # the grader's findings, JSON-ready

    def to_dict(self) -> dict[str, Any]:
        optional = ("compared", "facts")
        return {name: value for name, value in asdict(self).items() if name not in optional or value is not None}


@dataclass(frozen=True, slots=True)
class Reward:
    """Training score in place of the outcome's."""

    score: float  # any finite number, from reward stages that saw the whole step
    parts: dict[str, float] = field(default_factory=dict)  # named parts that sum to the score

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class LabelStatus(StrEnum):
    """Whether a trajectory has labels, and if not, why."""

    LABELLED = "labelled"
    SKIPPED = "skipped"  # by a skip rule
    FAILED = "failed"  # no usable answer of the judge
    OFF = "off"  # labels were not wanted


@dataclass(frozen=True, slots=True)
class Attribution:
    """The labels of a trajectory, and their cost."""

    status: LabelStatus
    good: tuple[bool, ...] = ()  # one entry per step if `status` is LABELLED, else empty
    analyses: tuple[str, ...] = ()  # the judge's sentences, one per step
    reason: str = ""  # why there are no labels
    kind: str = ""  # the reason in one word, for metrics
    cached: bool = False
    calls: int = 0  # 0 if the labels came from the cache; repairs and tokens likewise
    repairs: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0  # from outcome to labels

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Attribution:
        """Read an attribution; raises ValueError for an unknown status."""
        return _read(cls, data)

    @classmethod
    def off(cls, reason: str) -> Attribution:
        return cls(LabelStatus.OFF, reason=reason)


NOBODY_ASKED = Attribution.off("nobody was asked")


@dataclass(frozen=True, slots=True)
class GuidanceUse:
    """Guidance of a rollout: text from past experiences, put before the task."""

    wanted: bool = False
    text: str = ""  # made from the experiences `experience_ids`
    experience_ids: tuple[str, ...] = ()
    keep: bool = False  # the training prompt keeps the guidance
    problem: str = ""  # why wanted guidance is missing
    injected: str = ""  # `text` in its template, as the messages have it; "" if unguided

    @property
    def guided(self) -> bool:
        return bool(self.injected)

    @property
    def stripped(self) -> bool:
        """Whether guidance was removed from the training prompt."""
        return self.guided and not self.keep

    def to_dict(self) -> dict[str, Any]:
        """Return the five keys about guidance in a trajectory's record."""
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
    """Parts of the steps' advantages, one number per step: outcome + label + later. Later pipeline stages may scale the
    sum."""

    outcome: tuple[float, ...]  # from the episode's score
    label: tuple[float, ...]  # from the step's label, reward or anchor state
    later: tuple[float, ...]  # from later steps


@dataclass(frozen=True, slots=True)
class StepCredit:
    """Credit of a trajectory's steps."""

    advantages: tuple[float, ...]  # one per step
    step_rewards: tuple[float, ...] | None = None  # None if unknown; `parts` likewise
    parts: CreditParts | None = None

    def to_dict(self) -> dict[str, Any]:
        rewards = {} if self.step_rewards is None else {"step_rewards": list(self.step_rewards)}
        parts = {} if self.parts is None else {"parts": {k: list(v) for k, v in asdict(self.parts).items()}}
        return {"advantages": list(self.advantages), **rewards, **parts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepCredit:
        return _read(cls, data)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A problem at a step of a failed episode, without a severity."""

    step: int
    kind: str  # one of `task_manager.diagnose.KINDS`
    tool: str  # "" if the step called none
    words: str = ""  # explanation of the environment or a judge

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Trajectory:
    """One rollout of one task, as written to `trajectories/step_<n>.jsonl`.

    Records of earlier releases lack `began_step`, the versions and `tools`.
    """

    task: Task
    group_id: str  # shared by all rollouts of one task in one step
    rollout_id: int  # index in the group
    messages: list[dict[str, Any]]  # the whole conversation
    steps: list[Step]
    stop_reason: StopReason
    # None if the rollout failed (`error` says how) or the policy never acted; validation counts that as unsolved, score
    # 0.
    outcome: Outcome | None
    attempts: int = 1
    error: str = ""
    seconds: float = 0.0
    # What the context template removed or added; `calls` counts the calls before an edit.
    context_edits: list[dict[str, Any]] = field(default_factory=list)
    dropped_samples: dict[str, int] = field(default_factory=dict)  # counts of unusable training samples by name
    guidance: GuidanceUse | None = None  # None if the run has none; attribution, credit and reward likewise
    attribution: Attribution | None = None
    credit: StepCredit | None = None
    # Of a user's agent: `chains`, `calls`, `ignored` fields, `refused` requests, `structured` replies, and the first
    # `differences` between a message and the agent's earlier version of it.
    gateway: dict[str, Any] | None = None
    reward: Reward | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    began_step: int | None = None  # training step that started the rollout
    # oldest weights that sampled the rollout, by training step; None if nothing was sampled
    min_version: int | None = None
    max_version: int | None = None  # newest weights
    # Native tools in OpenAI's form (for a user's agent, of the first call); empty if calls are text.
    tools: list[dict[str, Any]] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        """The training score: the reward's, else the outcome's, or None without an outcome."""
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
        """Return the record for the step's file and for TransferQueue."""
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
        """Read a record, also one of an earlier release (without a schema).

        Raises ValueError if the schema is newer than this release's, or the record is not a trajectory.
        """
        try:
            # Refuse a newer schema: its fields may mean something else.
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
                "rollout_id": record.get("rollout_id", 0),
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
            found = _read(cls, {**record, **own})
            if not all(isinstance(message.get("role"), str) for message in found.messages):
                raise ValueError("a message without a role")
            return found
        except (KeyError, TypeError, AttributeError) as error:
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
    # Fields that only records of other releases have are ignored.
    try:
        found: T = _reader(cls).validate_python(data)  # type: ignore[arg-type]
        return found
    except ValueError as error:
        first = error.errors(include_url=False)[0]  # type: ignore[attr-defined]
        raise ValueError(f"{cls.__name__}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@cache
def _reader(cls: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


class RowKey(NamedTuple):
    """Key of a training row: group id, rollout's index in the group, row's index in the rollout. Keys sort in this
    order."""

    group_id: str
    rollout_id: int
    row: int

    @classmethod
    def of(cls, key: str) -> RowKey:
        """Read `<group>_<rollout>_<row>`; raises ValueError."""
        # From the right: a group id may hold underscores.
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

    The `response_*` lists, `log_probs` and `step_ids` have length R; `prompt_ids` has length P.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]  # 1 on sampled tokens
    log_probs: list[float]  # 0.0 on other tokens
    step_ids: list[int]  # a sampled token's step, -1 on other tokens
    trajectory_id: str = ""
    share: float = 1.0  # A trajectory becomes one sample or more: this one's share of all their sampled tokens.

    @property
    def steps(self) -> list[int]:
        """The steps with tokens in this sample, in order."""
        return sorted({step for step in self.step_ids if step >= 0})

"""Settings of making tasks: the section `task_manager` and what else the pipeline reads.

AgentEvolver's names are kept where they mean the same. None in `strategy_args` takes the action format's default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from agentevolver.llm.embeddings import EmbeddingSettings
from agentevolver.llm.settings import LLMSettings, Role
from agentevolver.utils import recipes
from agentevolver.utils.names import name_or_spec
from agentevolver.utils.net import http_url
from task_manager.actions import format_of

MAX_OBSERVATION_CHARS = 8_000
# Graders that need no judge.
WITHOUT_JUDGE = ("env", "state")

ReplyFormat = Literal["text", "tools", "json"]


GraderName = Literal[
    "env",
    "state",
    "state-llm",
    "llm",
    "llm-gt",
    "llm-binary",
    "llm-binary-no_constraint",
    "llm-binary-gt",
    "llm-binary-gt-no_constraint",
    "avg-llm",
    "avg-llm-binary-gt",
]


# The names of the graders that are built in.
GRADER_NAMES: tuple[str, ...] = get_args(GraderName)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StrategySettings(_Section):
    """How an exploration goes (`task_manager.strategy_args`)."""

    breadth_steps: int | None = Field(
        None, ge=0, description="breadth phase: steps in which the explorer sees all earlier ones and tries many things"
    )
    depth_steps: int | None = Field(
        None, ge=0, description="depth phase: steps in which it sees only the last observations"
    )
    max_explore_step: int | None = Field(None, ge=1, description="at most this many steps in all; depth is cut first")
    exploration_llm_temperature: float | None = Field(
        None, ge=0, description="temperature of both phases; null: 1.0 in the breadth phase, 0.7 in the depth phase"
    )
    exploration_llm_top_p: float = Field(1.0, gt=0, le=1, description="top_p of both phases")
    exploration_llm_top_k: int | None = Field(None, ge=1, description="for endpoints that know it; null: not sent")
    # High at first for variety, then low: the depth phase's actions become reference solutions.
    temperatures: ClassVar[dict[str, float]] = {"breadth": 1.0, "depth": 0.7}
    # Strategy curious: more tried actions would crowd out the rest of the prompt.
    memory_size: ClassVar[int] = 40

    def steps(self, env_type: str) -> tuple[int, int]:
        """Return (breadth, depth) for an environment."""
        breadth, depth = format_of(env_type).exploration
        breadth = breadth if self.breadth_steps is None else self.breadth_steps
        depth = depth if self.depth_steps is None else self.depth_steps
        if self.max_explore_step is not None:
            breadth = min(breadth, self.max_explore_step)
            depth = min(depth, self.max_explore_step - breadth)
        return breadth, depth

    def temperature(self, phase: Literal["breadth", "depth"]) -> float:
        chosen = self.exploration_llm_temperature
        return self.temperatures[phase] if chosen is None else chosen

    def window(self, env_type: str) -> int:
        """Return the number of observations that the explorer sees in the depth phase."""
        return max(1, self.steps(env_type)[1])

    @model_validator(mode="after")
    def _explores(self) -> Self:
        if self.breadth_steps == 0 and self.depth_steps == 0:
            raise ValueError("breadth_steps and depth_steps are both 0: an exploration needs at least one step")
        return self


class SynthesisSettings(_Section):
    """How a trajectory becomes tasks (`task_manager.synthesis`)."""

    max_tasks: int = Field(5, ge=1, description="tasks that are asked of one trajectory, and taken from it, at most")
    # Number of nearest existing queries that the synthesiser must avoid.
    shown_neighbours: ClassVar[int] = 8
    min_actions: int = Field(
        1, ge=1, description="proposals with fewer actions are dropped; the synthesiser knows the limit"
    )
    temperature: float = Field(0.7, ge=0, description="of the synthesiser")


class VerificationSettings(_Section):
    """Which checks a proposal must pass (`task_manager.verification`)."""

    resolve: bool = Field(
        False, description="let the verifier solve the task without seeing the solution, and compare the results"
    )
    # A task that one attempt does not solve is too hard to be certain of.
    resolve_tries: ClassVar[int] = 1
    judge: bool = Field(True, description="let the judge decide whether what happened is what the query asks for")
    # A rejection stands unless this many further verdicts all accept: a good task costs more than a verdict.
    second_opinions: ClassVar[int] = 2


class DeduplicationSettings(_Section):
    """Which queries count as duplicates (`task_manager.deduplication`)."""

    jaccard: float = Field(0.8, gt=0, le=1, description="word-set overlap from which two queries are the same")
    # MiniLM's cosine from which two queries are duplicates: the same query comes in many wordings.
    cosine: ClassVar[float] = 0.9
    # The shipped model: no address, no key, and the same vectors everywhere.
    encoder: ClassVar[EmbeddingSettings] = EmbeddingSettings()


class MixtureSettings(_Section):
    """What an epoch consists of (`task_manager.mixture`)."""

    use_original_tasks: bool = Field(True, description="train on the environment's own tasks")
    synthetic_data_ratio: float = Field(
        0.0, ge=0, description="synthetic tasks per original task, limited by how many there are"
    )
    shuffle: bool = Field(True, description="random order; false: originals first, each kind in file order")
    seed: int = Field(42, description="seed of the draws; every epoch is drawn anew")
    synthetic_advantage_scale: float = Field(
        0.5, ge=0, description="factor on the advantages of synthetic tasks if both kinds are trained on (paper, 7.1.3)"
    )

    @property
    def needs_synthetic(self) -> bool:
        return self.synthetic_data_ratio > 0

    @property
    def is_hybrid(self) -> bool:
        return self.use_original_tasks and self.needs_synthetic

    @model_validator(mode="after")
    def _trains_on_something(self) -> Self:
        if not self.use_original_tasks and not self.needs_synthetic:
            raise ValueError(
                "use_original_tasks is false and synthetic_data_ratio is 0: there would be no task to train on"
            )
        return self


class GraderSettings(_Section):
    """Who grades (`task_manager.grader`)."""

    original_grader: str = Field(
        "env", description=f"grader of the environment's own tasks: {', '.join(GRADER_NAMES)}, or package.module:Class"
    )
    synthetic_grader: Literal[GraderName, "auto"] = Field(
        "auto",
        description="grader of synthetic tasks; auto: state where a task has a machine check (state-llm if an answer "
        "in prose belongs "
        "to it), else fallback_grader",
    )
    fallback_grader: GraderName = Field(
        "llm-binary-gt-no_constraint",
        description="for tasks without a machine check, under auto; also the judge of state-llm",
    )
    compare_with: GraderName | None = Field(
        None, description="a second grader of the same rollouts, to measure agreement only"
    )
    # Share of rollouts that the second grader sees: agreement is known within a few per cent after a run.
    compare_share: ClassVar[float] = 0.1
    # Verdicts per rollout of the avg graders: odd for a majority; each is paid for.
    samples: ClassVar[int] = 3
    # 0 for the judge's most likely verdict; avg graders use at least 0.7.
    temperature: ClassVar[float] = 0.0

    @field_validator("original_grader")
    @classmethod
    def _original_grader(cls, value: str) -> str:
        return name_or_spec(value, GRADER_NAMES)

    @property
    def _judging(self) -> tuple[str, ...]:
        return () if self.fallback_grader in WITHOUT_JUDGE else ("state-llm",)

    def graders(self, mixture: MixtureSettings) -> tuple[str, ...]:
        """Return the graders that training may use. Validation is always graded by the environment."""
        names: list[str] = [self.original_grader] if mixture.use_original_tasks else []
        if mixture.needs_synthetic:
            names += (
                ["state", *self._judging, self.fallback_grader]
                if self.synthetic_grader == "auto"
                else [self.synthetic_grader]
            )
        if self.compare_with is not None:
            names.append(self.compare_with)
        return tuple(dict.fromkeys(names))


class CurriculumSettings(_Section):
    """Which tasks come next (`task_manager.curriculum`)."""

    enable: bool = Field(False, description="let task weights follow the measured success of rollout groups")
    # Epochs of rest for a task whose last group all succeeded or all failed: it gives no gradient.
    rest_epochs: ClassVar[int] = 2
    # The rest doubles each time up to this, so that every task returns.
    max_rest_epochs: ClassVar[int] = 8
    # GRPO learns most from groups of which half succeed.
    target_success: ClassVar[float] = 0.5
    # How fast a task's weight falls off around `target_success`.
    width: ClassVar[float] = 0.25
    # Share of the newest group in a task's success rate.
    smoothing: ClassVar[float] = 0.5
    # Mean success from which new tasks are to be harder.
    harder_above: ClassVar[float] = 0.7
    # Mean success from which new tasks are to be easier.
    easier_below: ClassVar[float] = 0.3
    synthesize_every_epochs: int = Field(
        0, ge=0, description="epochs between background rounds that make new tasks; 0: never"
    )
    # New tasks of a background round: more than an epoch can use would be stale when they are drawn.
    max_new_tasks: ClassVar[int] = 64


class Focus(_Section):
    """A weakness that new tasks target, and the worlds in which they are made."""

    tool: str = Field(description="a tool that the policy uses wrongly, as the action format names it")
    kind: str = Field(description="the kind of error")
    words: tuple[str, ...] = Field((), description="the environment's error messages")
    seeds: tuple[str, ...] = Field((), description="ids of the tasks whose worlds are explored")
    not_like: tuple[str, ...] = Field((), description="failed queries, which must not be copied")


class TaskManagerSettings(_Section):
    """The section `task_manager`."""

    n: int = Field(0, ge=0, description="explorations per seed task; 0: no synthetic tasks are made")
    max_seed_tasks: int | None = Field(
        None, ge=1, description="limit on the environment's tasks to explore from; null: all"
    )
    round: int = Field(
        0, ge=0, description="number of the round; a later one takes the next seed tasks and explores again"
    )
    known_data_paths: tuple[Path, ...] = Field(
        (), description="files of existing synthetic tasks: not made again, ids continue after theirs"
    )
    target_tasks: int | None = Field(None, ge=1, description="stop at this many tasks; null: after all explorations")
    env_types: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="of several environments, those that synthetic tasks are made for and trained on; null: all that "
        "are trained on",
    )
    env_profile: Path | None = Field(None, description="the environment's profile; null: the one shipped with it")
    train_data_path: Path = Field(Path("tasks_explored.train.jsonl"), description="file of the synthetic tasks")
    store: Path | None = Field(
        None, description="folder of the journal that makes runs resumable; null: train_data_path with .d added"
    )
    num_explore_threads: int = Field(16, ge=1, description="concurrent explorations, and concurrent verifications")
    strategy: Literal["random", "curious"] = Field(
        "random", description="random: the paper's; curious: steered towards untried actions"
    )
    strategy_args: StrategySettings = StrategySettings()
    action_format: str | None = Field(
        None,
        description="package.module:Class of the environment's action format (task_manager.actions.PlainFormat); "
        "null: the registered one",
    )
    reply_format: ReplyFormat = Field(
        "text",
        description="how explorer and verifier reply: text, the environment's own; tools, native calls of its tools; "
        "json, an object with "
        "thought and action. A call or an object is understood in any case",
    )
    # Limit in the prompts of all roles; longer observations lose their middle.
    max_observation_chars: ClassVar[int] = MAX_OBSERVATION_CHARS
    synthesis: SynthesisSettings = SynthesisSettings()
    verification: VerificationSettings = VerificationSettings()
    deduplication: DeduplicationSettings = DeduplicationSettings()
    mixture: MixtureSettings = MixtureSettings()
    grader: GraderSettings = GraderSettings()
    curriculum: CurriculumSettings = CurriculumSettings()
    focus: tuple[Focus, ...] = Field((), description="weaknesses that new tasks target, in the named worlds only")
    # Seconds to wait for an environment service that is down; a restart takes less.
    unavailable_timeout_s: ClassVar[float] = 120.0
    # The run ends with an error if a larger share of explorations fails.
    max_failed_share: ClassVar[float] = 0.5

    @property
    def store_path(self) -> Path:
        return self.store or self.train_data_path.with_name(self.train_data_path.name + ".d")

    @property
    def makes_tasks(self) -> bool:
        """Whether a run makes synthetic tasks before training."""
        return self.n > 0 and self.mixture.needs_synthetic

    @property
    def draws_epochs(self) -> bool:
        """Whether a run draws its epochs; otherwise it iterates over the environment's tasks."""
        return self.mixture.needs_synthetic or self.curriculum.enable

    @property
    def grades_otherwise(self) -> bool:
        """Whether a grader other than the environment grades training rollouts."""
        return self.grader.graders(self.mixture) != ("env",)

    @property
    def making_roles(self) -> tuple[Role, ...]:
        """Roles that a run needs for making tasks, before training or between epochs."""
        rounds = self.mixture.needs_synthetic and self.curriculum.synthesize_every_epochs > 0
        return self.roles_of_making if self.makes_tasks or rounds else ()

    @property
    def roles_of_making(self) -> tuple[Role, ...]:
        checks = ((self.verification.resolve, Role.VERIFIER), (self.verification.judge, Role.JUDGE))
        return (Role.EXPLORER, Role.SYNTHESISER, *(role for wanted, role in checks if wanted))

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles that a run needs for making and grading tasks."""
        judged = any(asks_judge(name) for name in self.grader.graders(self.mixture))
        return tuple(dict.fromkeys([*self.making_roles, *((Role.JUDGE,) if judged else ())]))


def asks_judge(grader: str) -> bool:
    """Whether a grader needs the judge; custom graders are assumed not to."""
    return grader not in WITHOUT_JUDGE and ":" not in grader


def file_of(path: Path, env_type: str) -> Path:
    """Return the task file of one of several environments: `tasks.NAME.jsonl` for `tasks.jsonl`."""
    return path.with_name(f"{path.stem}.{env_type}{path.suffix}")


class ServiceAccess(_Section):
    """Address of an environment service: keys of `env_service` shared by the pipeline and training."""

    env_url: Annotated[str, AfterValidator(http_url)] = Field(
        "http://127.0.0.1:8080",
        description="address of the service; the launcher starts one if it is local and none answers, and unless the "
        "key is set, on the first free port from this one on",
    )
    external: bool = Field(
        False, description="use the running service at env_url and start none; an address elsewhere is external anyway"
    )
    env_params: dict[str, Any] = Field(
        default_factory=dict, description="parameters of every episode; the environment defines the keys"
    )
    timeout_s: float = Field(300, gt=0, description="timeout of a call in seconds")


class PipelineService(ServiceAccess):
    env_type: str = Field(
        default_factory=lambda: recipes.default_environment() or "", validate_default=True, min_length=1
    )


class Splits(_Section):
    """Splits to explore and to keep out of training: keys of `data` shared by the pipeline and training."""

    train_split: str = Field("train", description="the environment's split that is trained on")
    train_filter: dict[str, Any] = Field(
        default_factory=dict, description="parameters for listing the tasks to train on"
    )
    val_splits: list[str] = Field(
        default_factory=lambda: ["dev"], description="splits to validate on, each reported separately"
    )
    val_filter: dict[str, Any] = Field(default_factory=dict, description="the same for val_splits")


class QuestioningConfiguration(_Section):
    """Everything that a pipeline run reads."""

    task_manager: TaskManagerSettings = TaskManagerSettings()
    llm: LLMSettings = LLMSettings()
    env_service: PipelineService = Field(default_factory=PipelineService)
    data: Splits = Splits()

    @property
    def models(self) -> dict[str, str]:
        """Model and sampling of each role, as text for journal keys."""
        out = {}
        for role in Role:
            endpoint = self.llm.endpoint(role)
            parts = endpoint.model_dump(include={"base_url", "model", "sampling"})
            if role.value in ("explorer", "synthesiser", "verifier", "judge") and endpoint.base_url == "offline":
                parts["teacher"] = self.llm.teacher.model_dump(exclude={"url"})
            out[role.value] = repr(sorted(parts.items()))
        return out

"""The sections of the configuration that are ours, as frozen models with their defaults, and where each field stands.

`own_defaults` is the layer between verl's defaults and `agentevolver.yaml`; `agentevolver.config.checks` fills and
checks the models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticUndefined

from advantage_processor.settings import AttributionSettings, StageSettings
from agentevolver.config.agent import AgentSettings
from agentevolver.config.coevolve import CoevolveSettings
from agentevolver.config.devices import Device
from agentevolver.config.self_play import CHECKPOINT, SelfPlaySettings
from agentevolver.flows import FlowSettings
from agentevolver.llm.settings import LLMSettings, Role
from agentevolver.tools.formats import TOOL_FORMATS, VLLM
from agentevolver.utils.names import one_of
from context_manager.settings import ContextLimits, ContextSettings
from env_service.feedback import FEEDBACK
from experience_manager.settings import PRESETS, ExperienceSettings
from task_manager.settings import ServiceAccess, Splits, TaskManagerSettings

# What the built-in teacher can play roles for; of the long variant it can only keep an agent's notes.
TEACHER_ENVIRONMENTS = ("pocket",)
TEACHER_NOTES = (*TEACHER_ENVIRONMENTS, "pocket_long")
# The environment in which tasks are proposed.
PROPOSE_ENV = "propose"
# Where it proposes, and judges proposals.
TEACHER_PROPOSALS = ("calc",)


class Section(BaseModel):
    """A section: unknown keys are refused, values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RolloutSettings(ContextSettings, FlowSettings, AgentSettings, Section):
    """Our keys of `actor_rollout_ref.rollout` (and `multi_turn.max_steps`)."""

    max_steps: int = Field(30, ge=1, description="actions of an episode")
    max_env_len: int = Field(4096, ge=8, description="tokens of one observation")
    max_env_worker: int = Field(256, ge=1, description="episodes in flight at once, per agent loop worker")
    sparse: bool = Field(True, description="graded 0 or 1 instead of by the dense score")
    use_qwen3: bool = Field(False, description="append /no_think to what the environment says")
    max_rollout_tries: int = Field(3, ge=1, description="attempts at one rollout")
    step_timeout_s: float = Field(600, gt=0, description="seconds of one model call")
    tool_format: str = Field(
        "none",
        description="how the model writes tool calls, by name, or vllm:NAME for a parser of vLLM's; auto: as its chat "
        "template does; none: agents act by text",
    )
    parallel_tool_calls: bool = Field(
        True, description="several calls of a reply are carried out; false: the first alone"
    )
    max_tool_calls: int = Field(8, ge=1, description="calls of a reply that are carried out")

    @field_validator("tool_format")
    @classmethod
    def _tool_format(cls, value: str) -> str:
        # Which parsers vLLM has is asked when it is imported.
        return value if re.fullmatch(rf"{VLLM}[\w-]+", value) else one_of(value, ("auto", "none", *TOOL_FORMATS))


class EnvironmentSettings(Section):
    """`env_service.environments.<name>`: what is different in one environment of several. What is given here stands in
    the place of the key of the same name in `env_service` or `data`; null: that one."""

    env_params: dict[str, Any] | None = Field(None, description="in the place of env_service.env_params")
    val_env_params: dict[str, Any] | None = Field(None, description="in the place of env_service.val_env_params")
    train_split: str | None = Field(None, description="in the place of data.train_split")
    train_filter: dict[str, Any] | None = Field(None, description="in the place of data.train_filter")
    val_splits: list[str] | None = Field(
        None, description="in the place of data.val_splits; []: this environment is not validated on"
    )
    val_filter: dict[str, Any] | None = Field(None, description="in the place of data.val_filter")
    native_tools: bool | None = Field(
        None, description="false: its agents act by text, whatever tool_format says of the others"
    )


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment of a run: its share of what is trained on, its parameters and its splits."""

    env_type: str
    weight: float
    env_params: Mapping[str, Any]
    val_env_params: Mapping[str, Any]
    train_split: str
    train_filter: Mapping[str, Any]
    val_splits: tuple[str, ...]
    val_filter: Mapping[str, Any]
    native_tools: bool = True

    def params(self, *, validation: bool) -> dict[str, Any]:
        """Return what an episode's create is sent; in validation an environment says no more than it does of itself."""
        params = {**self.env_params, **(self.val_env_params if validation else {})}
        return {**params, FEEDBACK: "plain"} if validation and FEEDBACK in params else params


class EnvServiceSettings(ServiceAccess, Section):
    """The section `env_service`."""

    env_type: str | dict[str, float] = Field(
        "appworld",
        description="the environment's name: built in, installed, or given by --env-module; or several with their "
        "shares of the tasks that are trained on, `{pocket: 2, gymnasium: 1}` (0: validated on alone)",
    )
    environments: dict[str, EnvironmentSettings] = Field(
        default_factory=dict,
        description="of several environments, by name, what is different in one: env_params, val_env_params, "
        "train_split, train_filter, val_splits, val_filter, each in the place of the key of that name; and "
        "native_tools, false where its agents are to act by text although tool_format is set. Limits (max_steps, "
        "lengths of prompt and response) are the run's: set them for the environment that needs most",
    )
    val_env_params: dict[str, Any] = Field(
        default_factory=dict, description="replaces keys of env_params in validation"
    )
    unavailable_timeout_s: float = Field(
        120, ge=0, description="seconds to wait for a service that does not answer, before a rollout is given up"
    )
    max_instances: int | None = Field(
        default=None,
        ge=1,
        description="the service's cap when the launcher starts it; null: room for every episode in flight",
    )
    pass_env: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(
        default_factory=list,
        description="names of secret variables that environments may see when the launcher starts the service",
    )

    @field_validator("env_type", mode="before")
    @classmethod
    def _check_env_type(cls, value: Any) -> Any:
        if isinstance(value, str) and value:
            return value
        if not isinstance(value, Mapping) or not value:
            raise ValueError("write an environment's name, or several with their weights ({pocket: 2, gymnasium: 1})")
        for name, weight in value.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"an environment's name is a text, found {name!r}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight) or weight < 0:
                raise ValueError(f"the weight of {name} must be a number of at least 0, found {weight!r}")
        if not any(value.values()):
            raise ValueError("all weights are 0, so nothing would be trained on: give one of them another")
        # One name is the plain form, whatever its weight.
        return next(iter(value)) if len(value) == 1 else {name: float(weight) for name, weight in value.items()}

    @model_validator(mode="after")
    def _check_environments(self) -> Self:
        for name in self.environments:
            if name not in self.env_types:
                raise ValueError(
                    f"environments.{name} is not one of the run's environments ({', '.join(self.env_types)}): add it "
                    "to env_type, or remove it"
                )
        return self

    @property
    def env_types(self) -> tuple[str, ...]:
        """The names of the run's environments, in the order in which they are written."""
        return (self.env_type,) if isinstance(self.env_type, str) else tuple(self.env_type)

    def weight(self, env_type: str) -> float:
        """Return the weight of one of the environments: 1 where there is one alone."""
        return 1.0 if isinstance(self.env_type, str) else self.env_type[env_type]

    @property
    def is_mixture(self) -> bool:
        """Whether there are several environments."""
        return len(self.env_types) > 1


class RaySettings(Section):
    """The section `ray`: the cluster that a run starts or joins."""

    address: str | None = Field(
        None, description="join the cluster at HOST:PORT; null: the launcher starts one for the run"
    )
    num_cpus: int = Field(32, ge=1, description="logical CPUs of the cluster that is started")
    num_gpus: int = Field(1, ge=1, description="its logical GPUs: one a rank, also on a machine without any")
    preload: bool = Field(
        False,
        description="import everything once, and fork the main job, the player, Ray's workers and vLLM's engine; on a "
        "CPU alone",
    )
    dashboard: bool = Field(True, description="serve Ray's dashboard")
    dashboard_port: int = Field(
        8265, ge=0, le=65535, description="its port, or the first free one from there on; 0: any"
    )
    object_store_memory: int | None = Field(
        default=None, ge=80_000_000, description="bytes of the object store; null: Ray's choice"
    )


class TrainerSettings(Section):
    """Our keys of `trainer`."""

    max_failed_rollouts: float = Field(
        0.5, ge=0, le=1, description="share of a step's rollouts that may fail before the step counts as failed"
    )
    max_failed_steps: int = Field(
        2, ge=1, description="failed steps in a row before the run stops; it stops at once if all rollouts failed"
    )
    deterministic: bool = Field(
        False,
        description="equal seeds give equal runs: rollouts wait for what runs in the background and they could see, a "
        "checkpoint holds the "
        "pool of experience, and a resume takes it back; on a GPU the kernels must be asked for it too "
        "(docs/training.md)",
    )
    reward_stages: tuple[StageSettings, ...] = Field(
        default=(),
        description="what makes new scores of a step's rollouts once all are graded, in order, before advantages are "
        "computed: package.module:Stage, or mappings with `use` and the stage's options",
    )
    row_clips: tuple[StageSettings, ...] = Field(
        default=(),
        description="rules that give the rows of a rollout an upper clip of their own in the place of "
        "actor.clip_ratio_high, the first that applies: ambiguity (lo, hi, bonus; by the task's p), or "
        "package.module:Rule. A guided rollout that exp_manager boosts keeps that clip",
    )
    max_log_prob_diff: float | None = Field(
        0.05,
        gt=0,
        description="mean |log-prob of the engine - log-prob of the trainer| of a step's sampled tokens, in nats, "
        "above which the log warns (metric rollout/log_prob_diff/mean); null: never",
    )
    max_steps_without_signal: int | None = Field(
        5,
        ge=1,
        description="training steps in a row in which all rollouts of every task scored alike, after which the run "
        "warns that nothing is learnt, and what to do; null: never",
    )
    val_pause_training: bool = Field(
        True,
        description="where rollouts go on over updates: the engine is validation's alone while it runs, and what it "
        "was sampling for training goes on afterwards; false: they share it",
    )
    dump_samples: bool = Field(
        False,
        description="write every training row's tokens and numbers to samples/step_<n>.jsonl, within "
        "retention.samples_gb; true on a CPU",
    )
    weights: Path | None = Field(
        None,
        description="weights that the policy begins with in the place of those of actor_rollout_ref.model.path, which "
        "the reference policy keeps: a Hugging Face folder, or a checkpoint (global_step_N), of which nothing else is "
        "read; a run that is resumed goes on from its own checkpoints",
    )


UpdateOrder = Literal["reverse", "forward", "random"]


class AlgorithmSettings(Section):
    """Our keys of `algorithm`."""

    update_order: UpdateOrder | None = Field(
        None,
        description="update one turn after the other (SeeUPO), the last first (reverse), the first first, or as drawn; "
        "null: all tokens of a trajectory at once",
    )
    sequential_clip: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="with update_order: how far from 1 the running ratio of a trajectory's updated turns may be, by "
        "which the advantages of the others are multiplied",
    )


class ColdStartSettings(Section):
    """The section `cold_start`: conversations that the policy imitates before it is trained by reinforcement."""

    files: list[str] = Field(
        default_factory=list,
        description="files of conversations, or globs: logs in the form of OpenAI's messages, and trajectories of "
        "runs; none: no cold start",
    )
    min_score: float = Field(1.0, ge=0, le=1, description="the least score of a conversation that is imitated")
    untold_score: float | None = Field(
        None, ge=0, le=1, description="the score of conversations that say none; null: they are refused"
    )
    max_per_task: int | None = Field(
        4, ge=1, description="conversations of one task that are imitated, the shortest ones; null: all"
    )
    epochs: int = Field(2, ge=1, description="how often each conversation is seen")
    batch_size: int = Field(32, ge=1, description="conversations an optimiser step")
    lr: float = Field(1.0e-5, gt=0, description="learning rate, on a cosine down to 0")
    warmup: float = Field(0.05, ge=0, le=1, description="share of the steps in which the learning rate rises")


class WatchdogSettings(Section):
    """The section `watchdog`: when a phase of the run counts as stuck. Nothing is ever ended for it."""

    enable: bool = Field(
        True, description="say it in the log, in status.json and in the metrics when a phase takes far too long"
    )
    floor_s: float = Field(600, gt=0, description="seconds below which no phase is too long")
    factor: float = Field(5, ge=1, description="times its own usual duration after which a phase is too long")


class RetentionSettings(Section):
    """The section `retention`: how much a long run keeps of what neither a resume nor the page's curves need.
    Null: all of it."""

    plain_steps: int | None = Field(
        100, ge=1, description="newest files of trajectories/, validation/, samples/ that are not compressed"
    )
    folder_gb: float | None = Field(
        10, gt=0, description="size of each of these folders beyond which the oldest files are dropped"
    )
    samples_gb: float | None = Field(
        1, gt=0, description="the same of samples/ alone (trainer.dump_samples), where it is less than folder_gb"
    )
    log_mb: float | None = Field(64, gt=0, description="size of a log beyond which it is set aside and begun anew")
    log_files: int | None = Field(
        4, ge=1, description="older pieces kept of a log, and runs whose failed workers' last words are kept"
    )


class DataSettings(Splits, Section):
    """Our keys of `data`, and the seed."""

    seed: int = Field(1, ge=0, description="the run's seed: the order of the tasks, and what every rollout samples")

    @field_validator("val_splits")
    @classmethod
    def _some(cls, splits: list[str]) -> list[str]:
        if not splits:
            raise ValueError("at least one split is validated on")
        return splits


class SizeSettings(Section):
    """The numbers of verl's sections that we read or that must fit together."""

    train_batch_size: int = Field(ge=1, description="tasks a step")
    ppo_mini_batch_size: int = Field(ge=1, description="tasks per optimiser step")
    n: int = Field(ge=1, description="rollouts of a task")
    val_n: int = Field(ge=1, description="rollouts of a validation task")
    max_prompt_length: int = Field(
        ge=1, description="tokens of the opening messages; a longer opening ends its rollout as context_full"
    )
    max_response_length: int = Field(ge=1, description="tokens of everything after them")
    response_length: int = Field(ge=1, description="tokens of one reply; its reserve in the context guard")
    max_model_len: int = Field(ge=2, description="tokens of prompt and reply of one call")
    n_gpus_per_node: int = Field(ge=1, description="devices of a node; on the CPU processes")
    nnodes: int = Field(ge=1, description="nodes")


class Settings(Section):
    """The typed view of everything that is ours in the configuration."""

    rollout: RolloutSettings
    env_service: EnvServiceSettings
    ray: RaySettings
    trainer: TrainerSettings
    algorithm: AlgorithmSettings
    cold_start: ColdStartSettings
    watchdog: WatchdogSettings
    retention: RetentionSettings
    data: DataSettings
    sizes: SizeSettings
    llm: LLMSettings
    attribution: AttributionSettings
    task_manager: TaskManagerSettings
    exp_manager: ExperienceSettings
    coevolve: CoevolveSettings
    self_play: SelfPlaySettings
    experiment_dir: Path = Field(description="where everything of the run is written")
    shared_files: bool = Field(
        False, description="files of the run have the modes of the umask; false: their owner alone may read them"
    )
    device: Device = Field(description="the device group that was chosen; set by it, not by you (write `device`)")
    device_env: dict[str, str] = Field(description="environment variables of every process of the run")

    @cached_property
    def environments(self) -> tuple[Environment, ...]:
        """The environments of the run, in the order in which they are written."""
        service = self.env_service
        common = {
            name: getattr(service if name in EnvServiceSettings.model_fields else self.data, name)
            for name in EnvironmentSettings.model_fields
            if name != "native_tools"
        } | {"native_tools": True}
        found = []
        for env_type in service.env_types:
            own = service.environments.get(env_type, EnvironmentSettings())
            given = {name: value for name in common if (value := getattr(own, name)) is not None}
            values = {**common, **given}
            values["val_splits"] = tuple(values["val_splits"])
            if self.self_play.enable and env_type == self.self_play.env_type:
                # Whoever is not told of another opponent (validation, a look at the openings) plays the start.
                values["env_params"] = {**values["env_params"], CHECKPOINT: self.self_play.start}
            found.append(Environment(env_type=env_type, weight=service.weight(env_type), **values))
        return tuple(found)

    def environment(self, env_type: str) -> Environment:
        """Return the environment of a name; raises ValueError for one that is not the run's."""
        for environment in self.environments:
            if environment.env_type == env_type:
                return environment
        raise ValueError(f"{env_type!r} is not one of the run's environments: {', '.join(self.env_service.env_types)}")

    @property
    def world(self) -> Environment:
        """The first environment that is trained on: in rounds the only one, which tasks are proposed for."""
        return next((one for one in self.environments if one.weight > 0), self.environments[0])

    @property
    def draws_epochs(self) -> bool:
        """Whether the run draws its epochs itself: of several environments in their shares, of synthetic tasks beside
        the original ones, or by a curriculum."""
        return self.env_service.is_mixture or self.task_manager.draws_epochs

    @property
    def diagnoses(self) -> bool:
        """Whether failed rollouts are diagnosed, for the stage `diagnosis` or for the closed loop."""
        staged = self.attribution.active and any(stage.use == "diagnosis" for stage in self.attribution.stages)
        return staged or self.task_manager.closed_loop.enable

    @property
    def questioned(self) -> tuple[str, ...]:
        """The names of the environments that synthetic tasks are made for and trained on."""
        if not self.task_manager.mixture.needs_synthetic:
            return ()
        trained = tuple(environment.env_type for environment in self.environments if environment.weight > 0)
        return trained if self.task_manager.env_types is None else tuple(self.task_manager.env_types)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that this run asks."""
        attributing = self.attribution.active and self.attribution.attributor == "llm"
        summarising = self.exp_manager.asks_summariser or self.rollout.summary_by == "summariser"
        own = ((attributing, Role.ATTRIBUTOR), (summarising, Role.SUMMARISER))
        asked = [*(role for asked, role in own if asked), *self.task_manager.roles, *self.roles_of_rounds]
        return tuple(dict.fromkeys(asked))

    @property
    def roles_outside_rollouts(self) -> tuple[Role, ...]:
        """The roles that this run asks also while no policy is served."""
        return (
            *self.task_manager.making_roles,
            *((Role.SUMMARISER,) if self.exp_manager.asks_summariser else ()),
            *self.roles_of_rounds,
        )

    @property
    def roles_of_rounds(self) -> tuple[Role, ...]:
        """The roles that propose tasks and judge proposals, where there are rounds."""
        section = self.coevolve
        if not section.enable or self.env_service.env_types == (PROPOSE_ENV,):  # a proposer's own training asks nobody
            return ()
        proposing = {
            "policy": (),
            "role": (Role.PROPOSER,),
            "explorer": self.task_manager.roles_of_making,
        }[section.proposer.by]
        judging = (Role.JUDGE,) if section.gate == "judge" else ()
        return tuple(dict.fromkeys((*proposing, *judging)))

    @property
    def context_limits(self) -> ContextLimits:
        """The token limits of an episode's conversation."""
        return ContextLimits(
            max_prompt_tokens=self.sizes.max_prompt_length,
            max_response_tokens=self.sizes.max_response_length,
            max_model_len=self.sizes.max_model_len,
            max_new_tokens=self.sizes.response_length,
            max_observation_tokens=self.rollout.max_env_len,
        )

    @property
    def usage_ledger(self) -> Path:
        """The file that keeps what the run spent on language models."""
        return self.llm.ledger or self.experiment_dir / "llm_usage.sqlite"


def of_verl(config: DictConfig) -> Settings:
    """Return the typed view inside a process that verl started, from what `for_verl` left there."""
    return Settings.model_validate(OmegaConf.to_container(config.agentevolver))


# Where each field of `Settings` stands in the configuration, if not under its own name in its own section.
PLACES: dict[str, str] = {
    "rollout": "actor_rollout_ref.rollout",
    "rollout.max_steps": "actor_rollout_ref.rollout.multi_turn.max_steps",
    "attribution": "attribution_driven_credit_assignment",
    "experiment_dir": "experiment.dir",
    "shared_files": "experiment.shared_files",
    "sizes.train_batch_size": "data.train_batch_size",
    "sizes.ppo_mini_batch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
    "sizes.n": "actor_rollout_ref.rollout.n",
    "sizes.val_n": "actor_rollout_ref.rollout.val_kwargs.n",
    "sizes.max_prompt_length": "data.max_prompt_length",
    "sizes.max_response_length": "data.max_response_length",
    "sizes.response_length": "actor_rollout_ref.rollout.response_length",
    "sizes.max_model_len": "actor_rollout_ref.rollout.max_model_len",
    "sizes.n_gpus_per_node": "trainer.n_gpus_per_node",
    "sizes.nnodes": "trainer.nnodes",
    "device": "device_name",
}


def place_of(field: str) -> str:
    """Return where a field of `Settings` (`rollout.max_steps`, say) stands in the configuration."""
    section, _, key = field.partition(".")
    return PLACES.get(field) or f"{PLACES.get(section, section)}{'.' if key else ''}{key}"


def own_places() -> frozenset[str]:
    """Return the keys that our models check alone: the sizes, which are verl's too, are not among them."""
    places = {"experiment"}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            places.add(place_of(name))
        elif section is not SizeSettings:
            places |= {place_of(f"{name}.{key}") for key in section.model_fields}
    return frozenset(places)


def own_defaults() -> dict[str, Any]:
    """Return every key of ours that has a default, as a tree in its place.

    Null where `exp_manager.preset` decides, since it is read only when all layers are there. The sizes are verl's keys,
    and have no default here.
    """
    tree: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if section is SizeSettings:
            continue
        if isinstance(section, type) and issubclass(section, BaseModel):
            for key, value in section().model_dump(mode="json").items():
                _put(tree, place_of(f"{name}.{key}"), value)
        elif field.default is not PydanticUndefined:
            _put(tree, place_of(name), field.default)
    for key in PRESETS["default"]:
        _put(tree, f"exp_manager.{key}", None)
    return tree


def _put(tree: dict[str, Any], place: str, value: Any) -> None:
    *sections, key = place.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[key] = value

"""Sections of the configuration that are ours: frozen models with defaults, and the place of each field.

`own_defaults` is the layer between verl's defaults and `agentevolver.yaml`.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticUndefined

from advantage_processor.settings import AttributionSettings
from agentevolver.config.agent import AgentSettings
from agentevolver.config.devices import Device
from agentevolver.config.environments import Environment, EnvironmentSettings, EnvServiceSettings
from agentevolver.config.recipes import RecipesSettings
from agentevolver.config.section import Section
from agentevolver.config.training import (
    ColdStartSettings,
    RaySettings,
    RetentionSettings,
    TrainerSettings,
    WatchdogSettings,
)
from agentevolver.llm.settings import LLMSettings, Role
from agentevolver.rollout.flows import FlowSettings
from agentevolver.rollout.tools.formats import REPLACED, TOOL_FORMATS, VLLM, advice
from agentevolver.utils import recipes
from agentevolver.utils.names import one_of
from context_manager.settings import ContextLimits, ContextSettings
from experience_manager.settings import PRESETS, ExperienceSettings
from task_manager.settings import Splits, TaskManagerSettings


class RolloutSettings(ContextSettings, FlowSettings, AgentSettings, Section):
    """Our keys of `actor_rollout_ref.rollout` (and `multi_turn.max_steps`)."""

    max_steps: int = Field(30, ge=1, description="maximum number of actions in an episode")
    max_env_len: int = Field(4096, ge=8, description="maximum tokens of one observation")
    max_env_worker: int = Field(256, ge=1, description="maximum episodes in flight, per agent loop worker")
    sparse: bool = Field(True, description="true: score 0 or 1; false: the environment's dense score")
    use_qwen3: bool = Field(False, description="append /no_think to the environment's messages (Qwen3)")
    # Attempts at one rollout: a rollout that fails three times has no transient fault.
    max_rollout_tries: ClassVar[int] = 3
    step_timeout_s: float = Field(600, gt=0, description="time limit of one model call, in seconds")
    tool_format: str = Field(
        "none",
        description="format of the model's tool calls: a name, or vllm:NAME for a parser of vLLM; auto: the format of "
        "its chat template; none: agents act by text",
    )
    max_tool_calls: int = Field(8, ge=1, description="maximum tool calls executed per reply; 1: only the first one")

    @field_validator("tool_format")
    @classmethod
    def _tool_format(cls, value: str) -> str:
        if value in REPLACED:
            raise ValueError(f"there is no format {value!r}; {advice(value)}")
        # The name of a vLLM parser is checked later: importing vLLM would take many seconds.
        return (
            value
            if re.fullmatch(rf"{VLLM}[\w-]+", value)
            else one_of(value, ("auto", "none", *TOOL_FORMATS, f"{VLLM}NAME"))
        )


class DataSettings(Splits, Section):
    """Our keys of `data`, and the seed."""

    seed: int = Field(
        1, ge=0, description="the run's seed: decides the order of the tasks and the samples of every rollout"
    )

    @field_validator("val_splits")
    @classmethod
    def _some(cls, splits: list[str]) -> list[str]:
        if not splits:
            raise ValueError("name at least one split to validate on")
        return splits


class SizeSettings(Section):
    """Sizes in verl's sections that we read, or that must fit together."""

    train_batch_size: int = Field(ge=1, description="tasks per training step")
    ppo_mini_batch_size: int = Field(ge=1, description="tasks per optimiser step")
    n: int = Field(ge=1, description="rollouts per task (group size)")
    val_n: int = Field(ge=1, description="rollouts per validation task")
    max_prompt_length: int = Field(
        ge=1, description="tokens of the opening messages; a longer opening ends its rollout as context_full"
    )
    max_response_length: int = Field(ge=1, description="tokens of all messages after the opening")
    response_length: int = Field(ge=1, description="tokens of one reply, which the context guard reserves")
    max_model_len: int = Field(ge=2, description="tokens of prompt and reply in one model call")
    n_gpus_per_node: int = Field(ge=1, description="devices per node; on a CPU: processes")
    nnodes: int = Field(ge=1, description="nodes")


class Settings(Section):
    """Typed view of all our keys."""

    rollout: RolloutSettings
    env_service: EnvServiceSettings
    ray: RaySettings
    trainer: TrainerSettings
    cold_start: ColdStartSettings
    watchdog: WatchdogSettings
    retention: RetentionSettings
    data: DataSettings
    sizes: SizeSettings
    llm: LLMSettings
    attribution: AttributionSettings
    task_manager: TaskManagerSettings
    exp_manager: ExperienceSettings
    recipes: RecipesSettings = Field(default_factory=RecipesSettings)
    experiment_dir: Path = Field(description="folder to which the run writes all its files")
    shared_files: bool = Field(
        False, description="true: the umask decides who may read the run's files; false: only their owner"
    )
    device: Device = Field(description="the chosen device group; set by the group itself (write `device` instead)")
    device_env: dict[str, str] = Field(description="environment variables for every process of the run")

    @cached_property
    def environments(self) -> tuple[Environment, ...]:
        """Environments of the run, in the order of the configuration."""
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
            for extra in recipes.called("env_params", self, env_type):
                values["env_params"] = {**values["env_params"], **extra}
            found.append(Environment(env_type=env_type, weight=service.weight(env_type), **values))
        return tuple(found)

    def recipe(self, name: str) -> BaseModel | None:
        """Return the settings of a recipe, or None if it is unregistered or has none."""
        found: BaseModel | None = getattr(self.recipes, name, None)
        return found

    def environment(self, env_type: str) -> Environment:
        """Return an environment by name. Raises ValueError if the run does not have it."""
        for environment in self.environments:
            if environment.env_type == env_type:
                return environment
        raise ValueError(f"{env_type!r} is not one of the run's environments: {', '.join(self.env_service.env_types)}")

    @property
    def draws_epochs(self) -> bool:
        """Whether the run draws its epochs itself: several environments, synthetic tasks, or a curriculum."""
        return self.env_service.is_mixture or self.task_manager.draws_epochs

    @property
    def questioned(self) -> tuple[str, ...]:
        """Names of the environments with synthetic training tasks."""
        if not self.task_manager.mixture.needs_synthetic:
            return ()
        trained = tuple(environment.env_type for environment in self.environments if environment.weight > 0)
        return trained if self.task_manager.env_types is None else tuple(self.task_manager.env_types)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles that this run calls."""
        attributing = self.attribution.active and self.attribution.attributor == "llm"
        summarising = self.exp_manager.asks_summariser or self.rollout.summary_by == "summariser"
        own = ((attributing, Role.ATTRIBUTOR), (summarising, Role.SUMMARISER))
        asked = [
            *(role for asked, role in own if asked),
            *self.task_manager.roles,
            *self.roles_of_recipes,
        ]
        return tuple(dict.fromkeys(asked))

    @property
    def roles_outside_rollouts(self) -> tuple[Role, ...]:
        """Roles that this run also calls while no policy is served."""
        return (
            *self.task_manager.making_roles,
            *((Role.SUMMARISER,) if self.exp_manager.asks_summariser else ()),
            *self.roles_of_recipes,
        )

    @property
    def roles_of_recipes(self) -> tuple[Role, ...]:
        """Roles that recipes call outside of rollouts."""
        return tuple(role for roles in recipes.called("roles", self) for role in roles)

    @property
    def context_limits(self) -> ContextLimits:
        return ContextLimits(
            max_prompt_tokens=self.sizes.max_prompt_length,
            max_response_tokens=self.sizes.max_response_length,
            max_model_len=self.sizes.max_model_len,
            max_new_tokens=self.sizes.response_length,
            max_observation_tokens=self.rollout.max_env_len,
        )

    @property
    def usage_ledger(self) -> Path:
        """SQLite file of the run's language model calls."""
        return self.llm.ledger or self.experiment_dir / "llm_usage.sqlite"


def of_verl(config: DictConfig) -> Settings:
    """Return the typed view in a process of verl, from the section that `for_verl` wrote."""
    return Settings.model_validate(OmegaConf.to_container(config.agentevolver))


# Field of `Settings` -> its place in the configuration, if not the key of the same name in the same section.
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
    """Return the place of a field such as `rollout.max_steps` in the configuration."""
    section, _, key = field.partition(".")
    return PLACES.get(field) or f"{PLACES.get(section, section)}{'.' if key else ''}{key}"


def own_places() -> frozenset[str]:
    """Return the keys that only our models check. Sizes are excluded, because verl checks them too."""
    places = {"experiment"}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            places.add(place_of(name))
        elif section is not SizeSettings:
            places |= {place_of(f"{name}.{key}") for key in section.model_fields}
    return frozenset(places)


def own_defaults() -> dict[str, Any]:
    """Return our keys that have a default, as a tree in their places."""
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
    # The preset decides these, and is known only once all layers are read.
    for key in PRESETS["default"]:
        _put(tree, f"exp_manager.{key}", None)
    return tree


def _put(tree: dict[str, Any], place: str, value: Any) -> None:
    *sections, key = place.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[key] = value

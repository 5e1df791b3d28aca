"""The sections of the configuration that are ours, as frozen models with their defaults, and where each field stands.

`own_defaults` is the layer between verl's defaults and `agentevolver.yaml`; `agentevolver.config.checks` fills and
checks the models.
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

# The environment in which tasks are proposed.


class RolloutSettings(ContextSettings, FlowSettings, AgentSettings, Section):
    """Our keys of `actor_rollout_ref.rollout` (and `multi_turn.max_steps`)."""

    max_steps: int = Field(30, ge=1, description="actions of an episode")
    max_env_len: int = Field(4096, ge=8, description="tokens of one observation")
    max_env_worker: int = Field(256, ge=1, description="episodes in flight at once, per agent loop worker")
    sparse: bool = Field(True, description="graded 0 or 1 instead of by the dense score")
    use_qwen3: bool = Field(False, description="append /no_think to what the environment says")
    # Attempts at one rollout: what fails three times is no passing fault.
    max_rollout_tries: ClassVar[int] = 3
    step_timeout_s: float = Field(600, gt=0, description="seconds of one model call")
    tool_format: str = Field(
        "none",
        description="how the model writes tool calls, by name, or vllm:NAME for a parser of vLLM's; auto: as its chat "
        "template does; none: agents act by text",
    )
    max_tool_calls: int = Field(8, ge=1, description="calls of a reply that are carried out; 1: the first alone")

    @field_validator("tool_format")
    @classmethod
    def _tool_format(cls, value: str) -> str:
        if value in REPLACED:
            raise ValueError(f"there is no format {value!r}; {advice(value)}")
        # Which parsers vLLM has is asked when it is imported.
        return (
            value
            if re.fullmatch(rf"{VLLM}[\w-]+", value)
            else one_of(value, ("auto", "none", *TOOL_FORMATS, f"{VLLM}NAME"))
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
            for extra in recipes.called("env_params", self, env_type):
                values["env_params"] = {**values["env_params"], **extra}
            found.append(Environment(env_type=env_type, weight=service.weight(env_type), **values))
        return tuple(found)

    def recipe(self, name: str) -> BaseModel | None:
        """Return the settings of a recipe, or None if it is not registered or has none."""
        found: BaseModel | None = getattr(self.recipes, name, None)
        return found

    def environment(self, env_type: str) -> Environment:
        """Return the environment of a name; raises ValueError for one that is not the run's."""
        for environment in self.environments:
            if environment.env_type == env_type:
                return environment
        raise ValueError(f"{env_type!r} is not one of the run's environments: {', '.join(self.env_service.env_types)}")

    @property
    def draws_epochs(self) -> bool:
        """Whether the run draws its epochs itself: of several environments in their shares, of synthetic tasks beside
        the original ones, or by a curriculum."""
        return self.env_service.is_mixture or self.task_manager.draws_epochs

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
        asked = [
            *(role for asked, role in own if asked),
            *self.task_manager.roles,
            *self.roles_of_recipes,
        ]
        return tuple(dict.fromkeys(asked))

    @property
    def roles_outside_rollouts(self) -> tuple[Role, ...]:
        """The roles that this run asks also while no policy is served."""
        return (
            *self.task_manager.making_roles,
            *((Role.SUMMARISER,) if self.exp_manager.asks_summariser else ()),
            *self.roles_of_recipes,
        )

    @property
    def roles_of_recipes(self) -> tuple[Role, ...]:
        """The roles that recipes ask, outside of rollouts."""
        return tuple(role for roles in recipes.called("roles", self) for role in roles)

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

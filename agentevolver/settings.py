"""The configuration, checked before anything is started, and read through types.

`load` composes the layers (`agentevolver.layers`) into one `DictConfig`; `Settings` is the typed view of what this project reads
of it. Nothing here imports torch, verl or ray, so a mistake is answered within seconds and with one line.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentevolver.layers import (
    ConfigError,
    Device,
    compose_defaults,
    detect_device,
    merge,
    one_line,
    read_overrides,
    read_yaml,
    refuse_unknown,
)

__all__ = ["ConfigError", "Resolved", "RolloutSettings", "Settings", "for_verl", "from_config", "load", "of_verl"]

OLD_TEMPLATE_NAMES = {"linear": "causal", "linear_think": "reasoning", "context_selfclip": "self_managed"}
CONTEXT_TEMPLATES = ("reasoning", "sliding_window", "self_managed", *sorted(set(OLD_TEMPLATE_NAMES) - {"linear"}), "causal", "linear")
AGENT_FLOWS = ("react", "planner_executor")
_SPEC = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_SHORTENING = ("sliding_window", "self_managed")
# Keys of `rollout` that only some of the built-in templates or flows read, and which.
READ_BY_TEMPLATE: dict[str, tuple[str, ...]] = {
    "context_trigger_tokens": _SHORTENING,
    "context_keep_turns": _SHORTENING,
    "summary_tokens": _SHORTENING,
    "train_context_calls": _SHORTENING,
    "summary_by": ("sliding_window",),
    "think_style": ("reasoning",),
    "think_hint": ("reasoning",),
}
READ_BY_FLOW: dict[str, tuple[str, ...]] = {"max_plans": ("planner_executor",)}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _known(value: str, names: tuple[str, ...]) -> str:
    """Return a name that is known or the place of a class; raises ValueError that says what else to write."""
    if value not in names and re.fullmatch(_SPEC, value) is None:
        near = difflib.get_close_matches(value, names, n=1)
        listed = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
        raise ValueError(f"write {listed}, or package.module:Class" + (f"; did you mean {near[0]!r}?" if near else ""))
    return value


class RolloutSettings(_Section):
    """Our keys of `actor_rollout_ref.rollout` (and `multi_turn.max_steps`)."""

    context_template: str = Field(description="how the conversation is kept: a name or package.module:Class")
    agent_flow: str = Field(description="how the agent acts: a name or package.module:Class; a task's metadata may name another")
    max_steps: int = Field(ge=1, description="actions of an episode")
    max_env_len: int = Field(ge=8, description="tokens of one observation")
    max_env_worker: int = Field(ge=1, description="episodes in flight at once, per agent loop worker")
    sparse: bool = Field(description="graded 0 or 1 instead of by the dense score")
    use_qwen3: bool = Field(description="append /no_think to what the environment says")
    max_rollout_tries: int = Field(ge=1, description="attempts at one rollout")
    step_timeout_s: float = Field(gt=0, description="seconds of one model call")
    observation_role: Literal["user", "tool"] | None = Field(description="role of what the environment says; null: its own")
    max_samples_per_trajectory: int | None = Field(ge=1, description="training samples of a trajectory; null: all")
    sample_choice: Literal["spread", "first", "last"] | None = Field(description="which samples are kept; null: spread")
    context_trigger_tokens: int | None = Field(ge=1, description="prompt length at which older turns give way; null: 3/4 of the room")
    context_keep_turns: int | None = Field(ge=1, description="newest turns that stay as they are; null: 3")
    summary_tokens: int | None = Field(ge=1, description="tokens of a summary or note; null: 1/8 of the room")
    summary_by: Literal["policy", "summariser", "nobody"] | None = Field(description="who writes summaries; null: policy")
    train_context_calls: bool | None = Field(description="train on the policy's summaries and context decisions; null: true")
    think_style: Literal["think", "seed_oss", "mistral", "granite"] | None = Field(description="how thoughts are marked; null: think")
    think_hint: str | None = Field(description="added to the last opening message")
    max_plans: int | None = Field(ge=1, description="plans of an episode, the first included; null: 4")

    @field_validator("context_template")
    @classmethod
    def _template(cls, value: str) -> str:
        return _known(value, CONTEXT_TEMPLATES)

    @field_validator("agent_flow")
    @classmethod
    def _flow(cls, value: str) -> str:
        return _known(value, AGENT_FLOWS)


class EnvServiceSettings(_Section):
    """The section `env_service`."""

    env_type: str = Field(min_length=1)
    env_url: str = Field(pattern=r"^https?://[^/]+(/.*)?$")
    env_params: dict[str, Any]
    val_env_params: dict[str, Any] = Field(description="replaces keys of env_params in validation")
    timeout_s: float = Field(gt=0)
    unavailable_timeout_s: float = Field(ge=0)
    max_instances: int | None = Field(default=None, ge=1)


class RaySettings(_Section):
    """The section `ray`: the cluster that a run starts or joins."""

    address: str | None
    num_cpus: int = Field(ge=1)
    num_gpus: int = Field(ge=1)
    dashboard: bool
    dashboard_port: int = Field(ge=0, le=65535)
    object_store_memory: int | None = Field(default=None, ge=80_000_000)


class TrainerSettings(_Section):
    """Our keys of `trainer`."""

    max_failed_rollouts: float = Field(ge=0, le=1)
    max_failed_steps: int = Field(ge=1)
    dump_samples: bool = Field(description="write every training row's tokens and numbers to samples/step_<n>.jsonl")


class DataSettings(_Section):
    """Our keys of `data`."""

    train_split: str
    train_filter: dict[str, Any] = Field(description="passed to the environment when it lists its tasks")
    val_splits: list[str] = Field(min_length=1)
    val_filter: dict[str, Any]


class SizeSettings(_Section):
    """The numbers of verl's sections that we read or that must fit together."""

    train_batch_size: int = Field(ge=1, description="tasks a step")
    ppo_mini_batch_size: int = Field(ge=1, description="tasks per optimiser step")
    n: int = Field(ge=1, description="rollouts of a task")
    val_n: int = Field(ge=1, description="rollouts of a validation task")
    max_prompt_length: int = Field(ge=1)
    max_response_length: int = Field(ge=1)
    response_length: int = Field(ge=1)
    max_model_len: int = Field(ge=2)
    n_gpus_per_node: int = Field(ge=1)
    nnodes: int = Field(ge=1)
    agent_loop_workers: int = Field(ge=1)


class Settings(_Section):
    """The typed view of everything that is ours in the configuration."""

    rollout: RolloutSettings
    env_service: EnvServiceSettings
    ray: RaySettings
    trainer: TrainerSettings
    data: DataSettings
    sizes: SizeSettings
    experiment_dir: Path
    device: Device
    device_env: dict[str, str]


# Where each field of `Settings` stands in the configuration, if not under its own name in its own section.
_PLACES: dict[str, str] = {
    "rollout": "actor_rollout_ref.rollout",
    "rollout.max_steps": "actor_rollout_ref.rollout.multi_turn.max_steps",
    "experiment_dir": "experiment.dir",
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
    "sizes.agent_loop_workers": "actor_rollout_ref.rollout.agent.num_workers",
    "device": "device_name",
}


@dataclass(frozen=True)
class Resolved:
    """A configuration that may be run: the composed tree, and its typed view."""

    config: DictConfig
    settings: Settings

    @property
    def experiment_dir(self) -> Path:
        """Where everything of the run is written."""
        return self.settings.experiment_dir

    @property
    def device(self) -> Device:
        """The device group that was chosen."""
        return self.settings.device

    @property
    def env_service(self) -> EnvServiceSettings:
        """The section `env_service`."""
        return self.settings.env_service

    @property
    def ray(self) -> RaySettings:
        """The section `ray`."""
        return self.settings.ray

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that every process of the run needs."""
        return {
            **self.settings.device_env,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "TENSORBOARD_DIR": str(self.experiment_dir.resolve() / "tensorboard"),
        }


def load(conf: Path | None = None, overrides: list[str] | None = None) -> Resolved:
    """Compose and check a configuration.

    Args:
        conf: the experiment's yaml; None composes the defaults alone.
        overrides: `key=value` items of the command line, the strongest layer. `device=auto|cpu|cuda` chooses the device group.

    Raises:
        ConfigError: with one line that says what to change.
    """
    experiment = read_yaml(conf) if conf is not None else {}
    command_line = read_overrides(overrides or [])
    chosen = command_line.pop("device", None) or experiment.pop("device", None) or "auto"
    experiment.pop("device", None)
    if chosen not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device: {chosen!r} is not known, write auto, cpu or cuda")
    config = compose_defaults(detect_device() if chosen == "auto" else chosen)
    for layer, source in ((experiment, str(conf)), (command_line, "the command line")):
        refuse_unknown(layer, config, source)
        config = merge(config, layer, source)
    name = str(config.trainer.experiment_name or "read_yaml_name")
    if name == "read_yaml_name":
        name = conf.stem if conf is not None else "default"
    config.trainer.experiment_name = name.replace("|", "-").replace("/", "-")
    return Resolved(config, _typed(config))


def from_config(config: DictConfig) -> Settings:
    """Return the typed view of an already composed configuration (a run's `config.yaml`)."""
    return _typed(config)


def for_verl(config: DictConfig) -> DictConfig:
    """Return a resolved copy for verl: sections that it reads into dataclasses hold its keys alone, ours stand in `agentevolver`."""
    copy: DictConfig = OmegaConf.create(OmegaConf.to_container(config, resolve=True))  # type: ignore[assignment]
    for field in RolloutSettings.model_fields:
        section, _, key = _place("rollout", field).rpartition(".")
        OmegaConf.select(copy, section).pop(key)
    copy.agentevolver = _typed(config).model_dump(mode="json")
    return copy


def of_verl(config: DictConfig) -> Settings:
    """Return the typed view inside a process that verl started, from what `for_verl` left there."""
    return Settings.model_validate(OmegaConf.to_container(config.agentevolver))


def _place(section: str, field: str) -> str:
    full = f"{section}.{field}"
    return _PLACES.get(full) or f"{_PLACES.get(section, section)}.{field}"


def _typed(config: DictConfig) -> Settings:
    try:
        tree = _gather(config)
        OmegaConf.to_container(config, resolve=True)
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        location = [str(part) for part in first["loc"]]
        place = _place(location[0], ".".join(location[1:])) if len(location) > 1 else _PLACES.get(location[0], location[0])
        raise ConfigError(f"{place}: {first['msg'].lower()}, found {first['input']!r}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    _cross_check(settings.sizes)
    _check_rollout(settings.rollout)
    return settings


def _gather(config: DictConfig) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, _Section):
            values = {key: OmegaConf.select(config, _place(name, key)) for key in section.model_fields}
            tree[name] = {key: _plain(value) for key, value in values.items()}
        else:
            tree[name] = _plain(OmegaConf.select(config, _PLACES.get(name, name)))
    return tree


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _check_rollout(rollout: RolloutSettings) -> None:
    """Refuse keys that the chosen template or flow would not read; a class of the user's own says itself which ones it reads."""
    if rollout.sample_choice is not None and rollout.max_samples_per_trajectory is None:
        raise ConfigError(f"{_place('rollout', 'sample_choice')} has no effect without max_samples_per_trajectory: set that, or remove it")
    template = OLD_TEMPLATE_NAMES.get(rollout.context_template, rollout.context_template)
    for what, chosen, table in (
        ("context_template", template, READ_BY_TEMPLATE),
        ("agent_flow", rollout.agent_flow, READ_BY_FLOW),
    ):
        for key, readers in table.items():
            if getattr(rollout, key) is not None and ":" not in chosen and chosen not in readers:
                only = " and ".join(readers)
                raise ConfigError(
                    f"{_place('rollout', key)} is read by {only} alone, {what} is {chosen}: remove the key, or choose another"
                )


def _cross_check(sizes: SizeSettings) -> None:
    """Refuse combinations that would only fail after the rollouts."""
    needed = sizes.max_prompt_length + sizes.max_response_length
    gpus = sizes.n_gpus_per_node * sizes.nnodes
    rollouts = sizes.train_batch_size * sizes.n
    if needed > sizes.max_model_len:
        raise ConfigError(
            f"data.max_prompt_length + data.max_response_length = {needed} exceeds actor_rollout_ref.rollout.max_model_len = "
            f"{sizes.max_model_len}: set the latter to {needed}, or one of the former lower"
        )
    if sizes.response_length > sizes.max_response_length:
        raise ConfigError(
            f"actor_rollout_ref.rollout.response_length = {sizes.response_length} exceeds data.max_response_length = "
            f"{sizes.max_response_length}: one reply must fit into the response"
        )
    if sizes.train_batch_size % sizes.ppo_mini_batch_size:
        raise ConfigError(
            f"data.train_batch_size = {sizes.train_batch_size} must be a multiple of actor_rollout_ref.actor.ppo_mini_batch_size = "
            f"{sizes.ppo_mini_batch_size}"
        )
    if rollouts % gpus:
        raise ConfigError(f"data.train_batch_size x actor_rollout_ref.rollout.n = {rollouts} must be a multiple of the {gpus} GPUs")

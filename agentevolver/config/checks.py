"""Configuration: composed, checked and read through types before anything is started.

`load` composes the layers into a `DictConfig`; `Settings` is the typed view of this project's keys. Nothing here
imports torch, verl or ray, so a mistake is reported within seconds, in one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentevolver.config.asynchronous import check_asynchronous
from agentevolver.config.cross_checks import check_settings, check_sizes
from agentevolver.config.devices import Device, take_device
from agentevolver.config.environments import EnvServiceSettings
from agentevolver.config.kernels import check_kernels
from agentevolver.config.layers import NAMES, Layer, read_layers
from agentevolver.config.load import lay_over
from agentevolver.config.model import Model
from agentevolver.config.model_files import FOLDERS, local
from agentevolver.config.schema import RolloutSettings, Settings, own_places, place_of
from agentevolver.config.section import Section
from agentevolver.config.training import RaySettings
from agentevolver.config.trees import one_line, select
from agentevolver.config.verl_keys import check as check_verl_keys
from agentevolver.utils import recipes
from agentevolver.utils.errors import ConfigError, all_of

# verl's keys that `agentevolver.trainer.job.main` sets to the experiment's task files.
_WRITTEN_BY_THE_RUN = ("data.train_files", "data.val_files")


@dataclass(frozen=True)
class Resolved:
    """Checked configuration: the composed tree and its typed view."""

    config: DictConfig
    settings: Settings
    model: Model | None = None
    """The model whose size decided defaults, if no recipe brought it and its `config.json` was found."""
    derived: tuple[str, ...] = ()
    """Lines that say which values follow from the model and from the openings."""
    undecided: tuple[str, ...] = ()
    """verl's keys whose values only verl's dataclasses can check (`agentevolver.config.verl_keys.ask_verl`)."""

    @property
    def experiment_dir(self) -> Path:
        return self.settings.experiment_dir

    @property
    def device(self) -> Device:
        return self.settings.device

    @property
    def env_service(self) -> EnvServiceSettings:
        return self.settings.env_service

    @property
    def ray(self) -> RaySettings:
        return self.settings.ray

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for every process of the run."""
        return {
            **self.settings.device_env,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "TENSORBOARD_DIR": str(self.experiment_dir.resolve() / "tensorboard"),
        }


def load(
    conf: Path | None = None, overrides: list[str] | None = None, measured: Mapping[str, Any] | None = None
) -> Resolved:
    """Compose and check a configuration.

    Args:
        conf: the experiment's yaml; None: only the defaults.
        overrides: `key=value` items, the strongest layer. `device=auto|cpu|cuda` selects the device group.
        measured: defaults that follow from the environment's openings (`agentevolver.config.openings`).

    Raises:
        ConfigError: one line that says what to change.
    """
    layers = read_layers(conf, overrides or [])
    device, problems = take_device(layers), list[str]()
    config, defaults, model = lay_over(device, layers, measured, problems)
    for key in _WRITTEN_BY_THE_RUN:
        if OmegaConf.select(config, key) is not None:
            problems.append(
                f"{key} is set by the run: tasks come from the environment's splits (data.train_split, "
                "data.val_splits); remove it"
            )
    for key in FOLDERS:
        # Every process reads the same folder, also in another working folder.
        if isinstance(given := OmegaConf.select(config, key), str) and (folder := local(given)) != given:
            OmegaConf.update(config, key, folder)
    if (config.trainer.experiment_name or "read_yaml_name") == "read_yaml_name":
        config.trainer.experiment_name = conf.stem if conf is not None else "default"
    for key in NAMES:
        name = str(OmegaConf.select(config, key) or "")
        outside = name.startswith("~") or {"", ".", ".."} & set(name.split("/"))
        if outside or any(letter < " " for letter in name) or len(name.encode()) > 200:
            problems.append(f"{key}: name a folder below experiment.root, in at most 200 bytes, found {name!r}")
    config.trainer.experiment_name = name.replace("|", "-").replace("/", "-")
    undecided: tuple[str, ...] = ()
    try:
        undecided = check_verl_keys(layers, config, defaults, own_places())
    except ConfigError as error:
        problems.append(str(error))
    try:
        settings = _typed(config)
        if settings.env_service.is_mixture:
            _check_read_by_a_mixture(layers, defaults)
        recipes.called("check", settings, config, [(layer.content, layer.source) for layer in layers])
    except ConfigError as error:
        problems.append(str(error))
    except TypeError:
        if not problems:  # else a check of a value that is refused already
            raise
    if problems:
        raise ConfigError("; ".join(dict.fromkeys(problems)))
    return Resolved(config, settings, model, undecided=undecided)


def _check_read_by_a_mixture(layers: Sequence[Layer], defaults: DictConfig) -> None:
    """Refuse keys of verl's data loader that have no effect with several environments. Raises ConfigError."""
    # With several environments the epochs are drawn by task_manager, not by verl's loader.
    for key, instead in (("shuffle", "task_manager.mixture.shuffle"), ("train_max_samples", "train_filter")):
        for layer in layers:
            default = OmegaConf.select(defaults, f"data.{key}")
            if select(layer.content, f"data.{key}", default) != default:
                raise ConfigError(
                    f"{layer.source}: `data.{key}` has no effect with several environments: set {instead} instead"
                )


def from_config(config: DictConfig) -> Settings:
    """Return the typed view of a composed configuration (a run's `config.yaml`)."""
    return _typed(config)


def for_verl(config: DictConfig) -> DictConfig:
    """Return a resolved copy for verl. Our keys move to a section `agentevolver`."""
    # verl 0.9.1 builds dataclasses from its sections, and these refuse unknown keys.
    copy: DictConfig = OmegaConf.create(OmegaConf.to_container(config, resolve=True))  # type: ignore[assignment]
    for field in RolloutSettings.model_fields:
        section, _, key = place_of(f"rollout.{field}").rpartition(".")
        OmegaConf.select(copy, section).pop(key)
    settings = _typed(config)
    # Our loss reads the old log-probs; verl would load a reference policy that nothing uses.
    if settings.exp_manager.kl_to == "old":
        copy.actor_rollout_ref.actor.use_kl_loss = False
    # GPU kernels are deterministic only on request.
    if settings.trainer.deterministic and settings.device != "cpu":
        for section in ("rollout", "actor.fsdp_config", "ref.fsdp_config"):
            OmegaConf.update(copy.actor_rollout_ref, f"{section}.full_determinism", True)
    if copy.actor_rollout_ref.rollout.full_determinism:
        _time_no_kernels(copy.actor_rollout_ref.rollout)
    copy.agentevolver = settings.model_dump(mode="json")
    return copy


def _time_no_kernels(rollout: DictConfig) -> None:
    """Turn off vLLM's combo kernels, which fuse several operations."""
    # vLLM uses combo kernels where a benchmark finds them faster, but in deterministic mode torch's compiler refuses to
    # run benchmarks, and the engine does not start (torch 2.11, vLLM 0.24).
    place = "engine_kwargs.vllm.compilation_config"
    given = OmegaConf.select(rollout, place)
    try:
        own: dict[str, Any] = dict(json.loads(given) if isinstance(given, str) else given or {})
    except (ValueError, TypeError) as error:
        raise ConfigError(f"actor_rollout_ref.rollout.{place}: must be a section, or JSON of one") from error
    compiler = {"combo_kernels": False, "benchmark_combo_kernel": False, **(own.get("inductor_compile_config") or {})}
    OmegaConf.update(rollout, place, {**own, "inductor_compile_config": compiler}, merge=False, force_add=True)


def _typed(config: DictConfig) -> Settings:
    try:
        settings = Settings.model_validate(_gather(config))
    except ValidationError as error:
        raise ConfigError("; ".join(map(_told, error.errors()))) from error
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    all_of(
        lambda: check_sizes(settings.sizes),
        lambda: check_kernels(lambda path: _resolved(config, path)),
        lambda: check_settings(settings, config),
        lambda: check_asynchronous(settings, config),
        lambda: recipes.called("check", settings, config, ()),
    )
    return settings


def _told(error: ErrorDetails) -> str:
    location = [str(part) for part in error["loc"]]
    # Validators of a section name the value themselves. The value of api_key_env may be a key, so it is not shown.
    hidden = isinstance(error["input"], dict | BaseModel) or location[-1] == "api_key_env"
    message = error["msg"].removeprefix("Value error, ")
    found = "" if hidden else f", found {error['input']!r}"
    return f"{place_of('.'.join(location))}: {message[0].lower()}{message[1:]}{found}"


def _gather(config: DictConfig) -> dict[str, Any]:
    # Only our keys are resolved: resolving verl's too would take ten times as long.
    tree: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            tree[name] = {key: _resolved(config, place_of(f"{name}.{key}")) for key in section.model_fields}
        else:
            tree[name] = _resolved(config, place_of(name))
    return tree


def _resolved(config: DictConfig, path: str) -> Any:
    value = OmegaConf.select(config, path)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value

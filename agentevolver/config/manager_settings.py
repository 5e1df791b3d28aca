"""The sections that one package's command line reads, without the rest of a training's configuration.

Sources: an experiment (`--conf`), the resolved configuration of a run (`--config`), or a yaml with only these sections
(`--settings`). Unknown keys raise ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ValidationError

from agentevolver.config.checks import from_config, load
from agentevolver.config.layers import read_overrides, read_yaml
from agentevolver.config.schema import Settings
from agentevolver.utils.errors import ConfigError
from env_service.feedback import FEEDBACK
from experience_manager.pool import Configuration as Experience
from task_manager.settings import PipelineService, Splits, file_of
from task_manager.settings import QuestioningConfiguration as Questioning

Model = TypeVar("Model", bound=BaseModel)


def from_settings_file(path: Path, overrides: Sequence[str] = ()) -> Questioning:
    """Read a yaml with only these sections. Raises ConfigError."""
    return _checked(Questioning, OmegaConf.to_container(_overridden(path, overrides), resolve=True), str(path))


def from_experiment(path: Path, overrides: Sequence[str] = (), environment: str | None = None) -> Questioning:
    """Read an experiment's yaml. Raises ConfigError.

    Args:
        environment: name of one environment; required if there are several.
    """
    settings = load(path, list(overrides)).settings
    names = settings.env_service.env_types
    if environment is None and settings.env_service.is_mixture:
        raise ConfigError(f"{path}: env_service.env_type names {', '.join(names)}: choose one with --environment NAME")
    if environment is not None and environment not in names:
        raise ConfigError(f"{path}: --environment {environment}: env_service.env_type names {', '.join(names)}")
    return from_settings(settings, environment)


def questionings(settings: Settings) -> tuple[Questioning, ...]:
    """Return the questioning sections of each environment with synthetic tasks."""
    return tuple(from_settings(settings, name) for name in settings.questioned)


def from_settings(settings: Settings, env_type: str | None = None) -> Questioning:
    """Return the questioning sections of a training run. Their costs count as the run's.

    Args:
        env_type: name of one of several environments; its task file and journal are named after it.
    """
    tree = settings.model_dump()
    environment = settings.environments[0] if env_type is None else settings.environment(env_type)
    section = tree["task_manager"]
    if settings.env_service.is_mixture:
        section["train_data_path"] = file_of(section["train_data_path"], environment.env_type)
        section["store"] = section["store"] and section["store"] / environment.env_type
    service = {
        **{name: tree["env_service"][name] for name in PipelineService.model_fields},
        "env_type": environment.env_type,
        # Tasks are made from the environment's own words, without extra feedback.
        "env_params": {name: value for name, value in environment.env_params.items() if name != FEEDBACK},
    }
    cache = settings.llm.task_making_cache(settings.experiment_dir)
    return Questioning.model_validate(
        {
            "task_manager": section,
            "llm": {**tree["llm"], "ledger": settings.usage_ledger, "cache": cache},
            "env_service": service,
            "data": {name: getattr(environment, name) for name in Splits.model_fields},
        }
    )


def read_configuration(
    conf: Path | None = None,
    settings: Path | None = None,
    store: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    config: Path | None = None,
) -> Experience:
    """Return the settings of the experience pool. Raises ConfigError."""
    if conf is not None or config is not None:
        run = load(conf, list(overrides)).settings if conf is not None else from_config(_overridden(config, overrides))
        tree: dict[str, Any] = {
            "exp_manager": run.exp_manager.model_dump(),
            "llm": {**run.llm.model_dump(), "ledger": run.usage_ledger},
            "experiment_dir": run.experiment_dir,
        }
    else:
        tree = dict(OmegaConf.to_container(_overridden(settings, overrides), resolve=True))  # type: ignore[arg-type]
    # A run's own settings are binding. Otherwise the store names the encoder of its vectors, unless it is overridden.
    given = bool(conf or config or {"preset", "encoder"} & (tree.get("exp_manager") or {}).keys())
    if store is not None:
        tree = {**tree, "exp_manager": {**(tree.get("exp_manager") or {}), "store": store}}
    return _checked(Experience, {**tree, "given": given}, str(conf or settings or config or "options"))


def _overridden(path: Path | None, overrides: Sequence[str]) -> DictConfig:
    own: Mapping[str, Any] = read_yaml(path) if path is not None else {}
    merged = OmegaConf.merge(OmegaConf.create(dict(own)), OmegaConf.create(read_overrides(list(overrides))))
    assert isinstance(merged, DictConfig)
    return merged


def _checked(model: type[Model], tree: Any, source: str) -> Model:
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{source}: {place}: {first['msg'].lower()}, found {first['input']!r}") from error

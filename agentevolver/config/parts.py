"""Parts of a configuration that single packages need: their own sections and the neighbours',
out of an experiment or a file of sections.

`--conf` reads an experiment as the launcher does, `--config` the resolved configuration of a run, `--settings` a yaml
with the sections that the package reads alone. A key that is not known is refused with a ConfigError of one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from agentevolver.config.checks import from_config, load
from agentevolver.config.load import read_overrides, read_yaml
from agentevolver.config.schema import Settings
from agentevolver.errors import ConfigError
from env_service.feedback import FEEDBACK
from experience_manager.pool import Configuration as Experience
from task_manager.settings import PipelineService, Splits, file_of
from task_manager.settings import QuestioningConfiguration as Questioning


def from_settings_file(path: Path, overrides: Sequence[str] = ()) -> Questioning:
    """Read a file of sections; raises ConfigError with one line."""
    tree = OmegaConf.merge(OmegaConf.create(read_yaml(path)), OmegaConf.create(read_overrides(list(overrides))))
    return _checked(OmegaConf.to_container(tree, resolve=True), str(path))


def from_experiment(path: Path, overrides: Sequence[str] = (), environment: str | None = None) -> Questioning:
    """Read an experiment as the launcher does, of several environments the named one's part;
    raises ConfigError with one line."""
    settings = load(path, list(overrides)).settings
    names = settings.env_service.env_types
    if environment is None and settings.env_service.is_mixture:
        raise ConfigError(f"{path}: env_service.env_type names {', '.join(names)}: say which with --environment NAME")
    if environment is not None and environment not in names:
        raise ConfigError(f"{path}: --environment {environment}: env_service.env_type names {', '.join(names)}")
    return from_settings(settings, environment)


def questionings(settings: Settings) -> tuple[Questioning, ...]:
    """Return what questioning reads for each environment that synthetic tasks are made for."""
    return tuple(from_settings(settings, name) for name in settings.questioned)


def from_settings(settings: Settings, env_type: str | None = None) -> Questioning:
    """Return what questioning reads of a training run's settings; what it spends counts as the run's.

    Args:
        settings: the run's.
        env_type: which of several environments; its tasks and its journal are beside those of the others, named by it.
    """
    tree = settings.model_dump()
    environment = settings.environments[0] if env_type is None else settings.environment(env_type)
    section = tree["task_manager"]
    if settings.env_service.is_mixture:
        section["train_data_path"] = file_of(section["train_data_path"], environment.env_type)
        section["store"] = section["store"] and section["store"] / environment.env_type
    sections = {
        "task_manager": section,
        "llm": {
            **tree["llm"],
            "ledger": settings.usage_ledger,
            "cache": settings.llm.task_making_cache(settings.experiment_dir),
        },
        "env_service": {
            **{name: tree["env_service"][name] for name in PipelineService.model_fields},
            "env_type": environment.env_type,
            # Who makes tasks is told what the environment says of itself.
            "env_params": {name: value for name, value in environment.env_params.items() if name != FEEDBACK},
        },
        "data": {name: getattr(environment, name) for name in Splits.model_fields},
    }
    return Questioning.model_validate(sections)


def _checked(tree: Any, source: str) -> Questioning:
    try:
        return Questioning.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{source}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}, found {first['input']!r}"
        ) from error


def read_configuration(
    conf: Path | None = None,
    settings: Path | None = None,
    store: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    config: Path | None = None,
) -> Experience:
    """Return what the options say; raises ConfigError with one line."""
    if conf is not None:
        tree = _sections_of_experiment(conf, overrides)
    elif config is not None:
        tree = _sections_of_run(config, overrides)
    else:
        own = read_yaml(settings) if settings is not None else {}
        merged = OmegaConf.merge(OmegaConf.create(own), OmegaConf.create(read_overrides(list(overrides))))
        tree = {str(key): value for key, value in OmegaConf.to_container(merged, resolve=True).items()}  # type: ignore[union-attr]
    # What a run was configured with stands; elsewhere the store says whose vectors it holds, unless that is overridden.
    given = bool(conf or config or {"preset", "encoder", "embedded_text"} & (tree.get("exp_manager") or {}).keys())
    if store is not None:
        tree = {**tree, "exp_manager": {**(tree.get("exp_manager") or {}), "store": store}}
    try:
        return Experience.model_validate({**tree, "given": given})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{conf or settings or config or 'options'}: {place}: {first['msg'].lower()}, found {first['input']!r}"
        ) from error


def _sections_of_experiment(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    return _sections(load(path, list(overrides)).settings)


def _sections_of_run(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    tree = OmegaConf.merge(OmegaConf.create(read_yaml(path)), OmegaConf.create(read_overrides(list(overrides))))
    assert isinstance(tree, DictConfig)
    return _sections(from_config(tree))


def _sections(settings: Settings) -> dict[str, Any]:
    llm = settings.llm.model_copy(update={"ledger": settings.usage_ledger})
    return {
        "exp_manager": settings.exp_manager.model_dump(),
        "llm": llm.model_dump(),
        "experiment_dir": settings.experiment_dir,
    }

"""Layers written by the user: an experiment's yaml and the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentevolver.config.trees import one_line, select
from agentevolver.utils import recipes
from agentevolver.utils.errors import ConfigError

# Keys that are texts even where yaml reads a number, a truth value or a date: 007, 1e5, off, 2024-01-01.
NAMES = ("trainer.project_name", "trainer.experiment_name")
# A text as yaml reads it anywhere.
quoted = partial(json.dumps, ensure_ascii=False)


@dataclass(frozen=True)
class Layer:
    """Layer with its name for errors."""

    content: dict[str, Any]
    source: str


def read_layers(conf: Path | None, overrides: Sequence[str]) -> tuple[Layer, ...]:
    """Return the experiment's yaml and the command line, the weaker first. Raises ConfigError."""
    experiment = Layer(read_yaml(conf) if conf is not None else {}, str(conf))
    layers = (experiment, Layer(read_overrides(list(overrides)), "the command line"))
    for layer in layers:
        _take_agent(layer.content, layer.source)
    return layers


def written(layers: Sequence[Layer], path: str) -> Any:
    """Return a key's value in the strongest layer, or None if no layer sets it."""
    return recipes.written([layer.content for layer in layers], path)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the yaml as a mapping. Raises ConfigError if the file is missing or is no mapping."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file, give an experiment's yaml (examples/basic.yaml, say) to --conf")
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        spelled = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as yaml: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds a {type(content).__name__}, an experiment's yaml is a mapping of keys")
    for key in NAMES:
        if not isinstance(select(content, key), str | None) and (text := select(spelled, key)) is not None:
            content["trainer"][key.partition(".")[2]] = text
    return {str(key): value for key, value in content.items()}


def read_overrides(items: list[str]) -> dict[str, Any]:
    """Return `key=value` items as a mapping. A value is yaml, but for those of `NAMES`. Raises ConfigError."""
    for item in items:
        if "=" not in item or item.startswith(("=", "-")):
            raise ConfigError(f"{item!r} is not an override, write key=value (trainer.total_epochs=2, say)")
    told = {key: value for key, _, value in (item.partition("=") for item in items)}
    names = [key for key in NAMES if told.get(key, "")[:1] not in "'\"" and told[key] not in ("~", "null")]
    items = [item for item in items if item.partition("=")[0] not in names]
    items += [f"{key}={quoted(told[key])}" for key in names]
    try:
        content = OmegaConf.to_container(OmegaConf.from_dotlist(items), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"the command line's overrides cannot be read: {one_line(error)}") from error
    return dict(content) if isinstance(content, dict) else {}  # type: ignore[arg-type]


def _take_agent(layer: dict[str, Any], source: str) -> None:
    """Move a text at `actor_rollout_ref.rollout.agent` to `agent_function`. Raises ConfigError if both are set."""
    rollout = select(layer, "actor_rollout_ref.rollout")
    if not isinstance(rollout, dict) or not isinstance(rollout.get("agent"), str):
        return
    if rollout.get("agent_function") is not None:
        raise ConfigError(
            f"{source}: actor_rollout_ref.rollout.agent and agent_function mean the same: remove one of them"
        )
    # In verl `agent` is a section, so the short form must not reach it.
    rollout["agent_function"] = rollout.pop("agent")

"""Check of verl's keys in the user's layers."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.leaves import leaves
from agentevolver.config.load import FREE_FORM, select
from agentevolver.config.verl_keys.ignored import ACTOR, IGNORED, MODEL, Ignored
from agentevolver.config.verl_keys.kinds import kind_of
from agentevolver.config.verl_keys.values import CHOICES, KINDS, LOGGERS, bound_of, items_of
from agentevolver.errors import ConfigError

# Ours by their place in `Settings`, but chosen by the device group and not by hand.
_CHOSEN_BY_GROUP = ("device_name",)
_SAVED, _RANK = f"{ACTOR}.checkpoint.save_contents", f"{MODEL}.lora_rank"
_MISSING = object()


@dataclass(frozen=True)
class Layer:
    """One layer of a person's own: what it holds, and its name in an error."""

    content: Mapping[str, Any]
    source: str


def check(layers: Sequence[Layer], config: DictConfig, defaults: DictConfig, ours: Set[str]) -> None:
    """Refuse keys of verl that would have no effect, and values that verl could not use.

    Args:
        layers: the user's, weakest first.
        config: the composed configuration, with these layers.
        defaults: the same without them.
        ours: paths that are not verl's; these are left to our own models.

    Raises:
        ConfigError: for the first such key, with one line: the layer, the key, what was found, what to write instead.
    """
    for path, strength in _keys(layers).items():
        own = _is_within(path, ours)
        if own and path not in _CHOSEN_BY_GROUP:
            continue
        source, value = layers[strength].source, _plain(OmegaConf.select(config, path))
        if _is_default(path, value, defaults):
            continue
        for row in IGNORED:
            if row.matches(path) and not _is_read(row, strength, layers, config):
                raise ConfigError(f"{source}: `{path}` {row.why}")
        if not own and not _is_within(path, FREE_FORM):
            _check_value(path, value, source, defaults)
            if path == _SAVED and "hf_model" in items_of(value) and OmegaConf.select(config, _RANK):
                raise ConfigError(
                    f"{source}: {path}: hf_model does not go with {_RANK} above 0, verl would write the adapter's "
                    "names into a model that "
                    f"has none: leave it out, and merge a checkpoint with `python -m verl.model_merger`"
                )


def _keys(layers: Sequence[Layer]) -> dict[str, int]:
    """Return the keys that hold values, and the place of the strongest layer that sets each."""
    return {path: strength for strength, layer in enumerate(layers) for path, _ in leaves(layer.content)}


def _is_within(path: str, places: Set[str] | Sequence[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:depth]) in places for depth in range(1, len(parts) + 1))


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _is_default(path: str, value: Any, defaults: DictConfig) -> bool:
    default = _plain(OmegaConf.select(defaults, path, default=_MISSING, throw_on_missing=False))
    return type(value) is type(default) and bool(value == default)


def _is_read(row: Ignored, strength: int, layers: Sequence[Layer], config: DictConfig) -> bool:
    """Whether a key is read after all; so is one that stands under a stronger layer which switched its reader off."""
    if row.unless is None:
        return False
    switch, values = row.unless
    switched_by = max(
        (place for place, layer in enumerate(layers) if select(layer.content, switch, _MISSING) is not _MISSING),
        default=-1,
    )
    return OmegaConf.select(config, switch) in values or (row.lenient and switched_by > strength)


def _check_value(path: str, value: Any, source: str, defaults: DictConfig) -> None:
    kind = KINDS.get(path) or kind_of(path, defaults)
    if kind is not None and not kind.takes(value):
        quoted = ", in quotes" if kind.names == {"str"} and isinstance(value, int | float) else ""
        raise ConfigError(f"{source}: {path}: write {kind.words}{quoted}, found {value!r}")
    if (names := CHOICES.get(path)) is not None:
        for item in items_of(value):
            if item not in names:
                listed = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
                raise ConfigError(f"{source}: {path}: write {listed}, found {item!r}")
    if (bound := bound_of(path)) is not None:
        for item in items_of(value):
            if isinstance(item, int | float) and not bound.holds(item):
                raise ConfigError(f"{source}: {path}: write a number {bound.words}, found {item!r}")
    if path == "trainer.logger":
        _check_loggers(items_of(value), source)


def _check_loggers(names: Sequence[str], source: str) -> None:
    for name in names:
        package = LOGGERS[name]
        if package is not None and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{source}: trainer.logger: {name} needs the package {package}, which is not installed: install it, "
                f"or leave {name} out"
            )

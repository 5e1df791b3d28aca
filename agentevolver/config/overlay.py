"""Overlay: a resolved configuration with other values for some keys.

In a resolved configuration, a key that refers to another one holds the value. The overlay restores such references, so
a change reaches every key that depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentevolver.config.checks import from_config
from agentevolver.config.load import compose_defaults, refuse_unknown, resolved_tree
from agentevolver.config.model import PATH
from agentevolver.config.schema import Settings
from agentevolver.config.trees import leaves, nested, select

_MISSING = object()


def laid_over(config: Mapping[str, Any], overlay: Mapping[str, Any]) -> DictConfig:
    """Return a resolved configuration with other values, and with the values that depend on them.

    Args:
        config: resolved configuration as a plain tree.
        overlay: dotted key -> value; a mapping replaces the old one instead of being merged.
    """
    tree: DictConfig = OmegaConf.create(dict(config))
    OmegaConf.set_struct(tree, False)
    for path, reference in _references(config):
        if path not in overlay and _follows(tree, path, reference):
            OmegaConf.update(tree, path, reference)
    for path, value in overlay.items():
        OmegaConf.update(tree, path, value, merge=False)
    return OmegaConf.create(resolved_tree(tree))


def check_overlay(config: Mapping[str, Any], overlay: Mapping[str, Any], source: str) -> Settings:
    """Return the typed view of a configuration with an overlay.

    Raises:
        ConfigError: a key is unknown, or the result is invalid.
    """
    tree: DictConfig = OmegaConf.create(dict(config))
    for path, value in overlay.items():
        refuse_unknown(nested(path, {} if isinstance(value, Mapping) else None), tree, source)
    return from_config(laid_over(config, overlay))


def flat(overrides: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides, nested or dotted, as dotted keys with values.

    A mapping is itself a value if the configuration has no mapping there, or an empty one.
    """
    found: dict[str, Any] = {}

    def take(path: str, value: Any) -> None:
        stands = select(config, path)
        if isinstance(value, Mapping) and isinstance(stands, Mapping) and stands:
            for key, inner in value.items():
                take(f"{path}.{key}", inner)
        else:
            found[path] = value

    for path, value in overrides.items():
        take(path, value)
    return found


def _references(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, reference) for each default that refers to other keys."""
    written = [nested(PATH, select(config, PATH))]
    composed = compose_defaults(select(config, "device_name", "cuda"), written)
    defaults: Any = OmegaConf.to_container(composed, resolve=False)
    for path, value in leaves(defaults):
        if isinstance(value, str) and "${" in value:
            yield path, value


def _follows(tree: DictConfig, path: str, reference: str) -> bool:
    """Whether a key has the value that its reference would give."""
    stands = OmegaConf.select(tree, path, default=_MISSING)
    if stands is _MISSING:
        return False
    before = stands
    try:
        OmegaConf.update(tree, path, reference)
        return bool(OmegaConf.select(tree, path) == before)
    except OmegaConfBaseException:
        return False
    finally:
        OmegaConf.update(tree, path, before, merge=False)

"""A resolved configuration with other values of some keys.

Where a configuration is resolved, a key that followed another one holds its value. Laid over, such a key follows again,
so that what is changed reaches all that depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentevolver.config.checks import from_config
from agentevolver.config.load import compose_defaults, refuse_unknown, resolved_tree
from agentevolver.config.schema import Settings
from agentevolver.config.trees import leaves, nested, select

_MISSING = object()


def laid_over(config: Mapping[str, Any], overlay: Mapping[str, Any]) -> DictConfig:
    """Return a resolved configuration with other values, and with what follows from them.

    Args:
        config: a resolved configuration, a plain tree.
        overlay: values by the full names of their keys; a mapping takes the place of one, it is not merged into it.
    """
    tree: DictConfig = OmegaConf.create(dict(config))
    OmegaConf.set_struct(tree, False)
    for path, reference in _references(str(select(config, "device_name", "cuda"))):
        if path not in overlay and _follows(tree, path, reference):
            OmegaConf.update(tree, path, reference)
    for path, value in overlay.items():
        OmegaConf.update(tree, path, value, merge=False)
    return OmegaConf.create(resolved_tree(tree))


def check_overlay(config: Mapping[str, Any], overlay: Mapping[str, Any], source: str) -> Settings:
    """Return the typed view of a configuration with an overlay.

    Raises:
        ConfigError: the overlay names a key that nobody reads, or the whole is refused.
    """
    tree: DictConfig = OmegaConf.create(dict(config))
    for path, value in overlay.items():
        refuse_unknown(nested(path, {} if isinstance(value, Mapping) else None), tree, source)
    return from_config(laid_over(config, overlay))


def flat(overrides: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `override` of a section as full names of keys and values, whether it was written with dots or nested; a
    mapping where the configuration has none, or an empty one, is a value."""
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


def _references(device: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that follow others by default, with what they follow."""
    defaults: Any = OmegaConf.to_container(compose_defaults(device), resolve=False)
    for path, value in leaves(defaults):
        if isinstance(value, str) and "${" in value:
            yield path, value


def _follows(tree: DictConfig, path: str, reference: str) -> bool:
    """Whether a key of a resolved configuration has the value that it would follow."""
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

"""The defaults of our own keys, as the models declare them: the layer between verl's defaults and
`agentevolver.yaml`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from agentevolver.config.places import place_of
from agentevolver.config.schema import Settings, SizeSettings
from experience_manager.settings import PRESETS


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

"""Every key of the configuration that is ours, with what its model says of it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentevolver.config.places import place_of
from agentevolver.config.schema import Settings, SizeSettings

_WORDS = {bool: "true, false", int: "integer", float: "number", str: "text", Path: "path"}
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


@dataclass(frozen=True)
class Key:
    """One key: where it stands, the model and field that hold it."""

    path: str
    model: type[BaseModel]
    name: str

    @property
    def field(self) -> FieldInfo:
        """The field's declaration."""
        return self.model.model_fields[self.name]

    @property
    def values(self) -> str:
        """What may be written."""
        return values_of(self.field)


@dataclass(frozen=True)
class KeySection:
    """A section, its model, and the keys that stand in it directly."""

    path: str
    model: type[BaseModel]
    keys: tuple[Key, ...]


def nested(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field holds, if it is a section of its own."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def sections() -> Iterator[KeySection]:
    """Yield every section of ours, outer ones first; the sizes, which are verl's keys, are not among them."""
    single: list[Key] = []
    for name, field in Settings.model_fields.items():
        model = nested(field.annotation)
        if model is None:
            single.append(Key(place_of(name), Settings, name))
        elif model is not SizeSettings:
            yield from _within(name, model, "")
    yield KeySection("", Settings, tuple(single))


def sizes() -> KeySection:
    """Return verl's numbers that we read too, because they must fit together."""
    keys = tuple(Key(place_of(f"sizes.{name}"), SizeSettings, name) for name in SizeSettings.model_fields)
    return KeySection("sizes", SizeSettings, keys)


def _within(section: str, model: type[BaseModel], inner: str) -> Iterator[KeySection]:
    own = [name for name, field in model.model_fields.items() if nested(field.annotation) is None]
    keys = tuple(Key(place_of(f"{section}.{inner}{name}"), model, name) for name in own)
    yield KeySection(place_of(f"{section}.{inner}".rstrip(".")), model, keys)
    for name, field in model.model_fields.items():
        if (found := nested(field.annotation)) is not None:
            yield from _within(section, found, f"{inner}{name}.")


def models() -> list[type[BaseModel]]:
    """Return every model of the configuration, those inside lists and mappings included."""
    found: list[type[BaseModel]] = []

    def visit(model: type[BaseModel]) -> None:
        if model not in found:
            found.append(model)
            for field in model.model_fields.values():
                for kind in (field.annotation, *get_args(field.annotation)):
                    if (inner := nested(kind)) is not None:
                        visit(inner)

    visit(Settings)
    return found


def values_of(field: FieldInfo) -> str:
    """Return in words what a field takes: names, or a type with its bounds, and whether null is taken."""
    kinds = list(get_args(field.annotation)) if _is_union(field.annotation) else [field.annotation]
    optional = type(None) in kinds
    words = ", ".join(_word(kind) for kind in kinds if kind is not type(None))
    bounds = [
        f"{sign} {getattr(item, name)}"
        for name, sign in _BOUNDS
        for item in field.metadata
        if getattr(item, name, None) is not None
    ]
    return " ".join([words, " and ".join(bounds)]).strip() + (" or null" if optional else "")


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _word(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{str(value).lower() if isinstance(value, bool) else value}`" for value in get_args(kind))
    if get_origin(kind) is dict:
        return "mapping"
    if get_origin(kind) in (list, tuple):
        return "list"
    return _WORDS.get(kind, "text")

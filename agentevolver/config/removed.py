"""Error messages for keys that are not read: the new name, the fixed value, or the reason (`removed.yaml`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from agentevolver.config.schema import Settings, place_of


@cache
def table() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return read


def explanation(path: str) -> str | None:
    """Return the explanation for a removed key or one of AgentEvolver, or None if the key never existed."""
    for old, new in table()["renamed"].items():
        if path == old or path.startswith(f"{old}."):
            return f"it is now `{new}{path.removeprefix(old)}`"
    if (new := table()["agentevolver"].get(path)) is not None:
        return f"write `{new}`"
    if (reason := table()["removed"].get(path)) is not None:
        return f"{reason}; remove it"
    section, _, key = path.rpartition(".")
    for name, field in Settings.model_fields.items():
        value = _constant(field.annotation, place_of(name), section, key)
        if value is not None:
            return f"it is fixed at {value}; remove it"
    return None


def _constant(model: object, place: str, section: str, key: str) -> str | None:
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or not f"{section}.".startswith(f"{place}."):
        return None
    if place == section:
        return str(getattr(model, key)) if key in model.__class_vars__ else None
    inner = section.removeprefix(f"{place}.").partition(".")[0]
    field = model.model_fields.get(inner)
    return _constant(field.annotation, f"{place}.{inner}", section, key) if field is not None else None

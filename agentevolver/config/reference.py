"""Generator of the page of all keys: `python -m agentevolver.config.reference > docs/configuration.md`.

Sources: the JSON schemas of our models, the composed defaults, the tables of verl's keys, and the layers.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from pydantic import BaseModel

from agentevolver.config.load import CONFIG_DIR, compose_defaults
from agentevolver.config.schema import Settings, SizeSettings, place_of
from agentevolver.config.trees import FREE_FORM, select
from agentevolver.config.verl_keys import READ_WITH, UNREAD
from experience_manager.settings import PRESETS

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_TYPES = {"boolean": "`true`, `false`", "string": "text", "array": "list", "object": "mapping"}
_MISSING = object()
_HEAD = """# Configuration

Every key that is ours: what may be written, the default, and what it means. This page is generated from the typed
settings when the documentation is built. What to change for which purpose is in [Training](training.md); AgentEvolver's
old names are in [From AgentEvolver](from_agentevolver.md).

The layers, weakest first: verl's defaults, `agentevolver/config/agentevolver.yaml`,
`agentevolver/config/device/<device>.yaml`, the preset of `exp_manager` (for verl's keys), the experiment's yaml
(`--conf`), `key=value` on the launcher's command line. `--show-config` prints the result.

* An unknown key is refused, at any depth, with the nearest known name. So is a section that gets a value, a value of
  the wrong type, and a key that the chosen mode would not read.
* `device` (`auto`, `cpu`, `cuda`) chooses the device group; it stands in an experiment's yaml or on the
  command line. Where `cpu` and `cuda` differ, both defaults are given. What `auto` takes is in
  [Training](training.md#cpu-and-gpu).
* `null` leaves a choice open; the meaning says to whom. `${...}` refers to another key, `${oc.env:NAME}` to an
  environment variable.
"""
_VERLS = """## verl's keys

Everything else is verl's: its names, its meanings, its defaults (`verl/trainer/config` of the installed verl). These
files say where ours differ; the device's lies over the first one.
"""
_REFUSED = """## verl's keys that are refused

A key is refused where an experiment's yaml or the command line sets it to another value than the default; `*` stands
for anything.

| keys | why |
|---|---|"""


@dataclass(frozen=True)
class Key:
    """Key with its path, and the model and field that hold it."""

    path: str
    model: type[BaseModel]
    name: str

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON schema of the field."""
        properties: Mapping[str, Mapping[str, Any]] = self.model.model_json_schema()["properties"]
        return properties[self.name]


@dataclass(frozen=True)
class KeySection:
    """Section with its model and its direct keys."""

    path: str
    model: type[BaseModel]
    keys: tuple[Key, ...]


def sections() -> Iterator[KeySection]:
    """Yield our sections, outer ones first."""
    single = []
    for name, field in Settings.model_fields.items():
        model = field.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            single.append(Key(place_of(name), Settings, name))
        elif model is not SizeSettings:  # sizes are verl's keys
            yield from _within(name, model)
    yield KeySection("", Settings, tuple(single))


def _within(section: str, model: type[BaseModel]) -> Iterator[KeySection]:
    fields = {name: field.annotation for name, field in model.model_fields.items()}
    inner = {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}
    own = (Key(place_of(f"{section}.{name}"), model, name) for name in fields if name not in inner)
    yield KeySection(place_of(section), model, tuple(own))
    for name, kind in inner.items():
        yield from _within(f"{section}.{name}", kind)


def page() -> str:
    cuda, cpu = (OmegaConf.to_container(compose_defaults(device), resolve=False) for device in ("cuda", "cpu"))
    parts = [_HEAD]
    for section in sections():
        parts += [f"## `{section.path}`\n\n{_first(section.model)}\n" if section.path else "## Single keys\n"]
        parts += ["| key | values | default | meaning |\n|---|---|---|---|"]
        for key in section.keys:
            default, on_cpu = select(cuda, key.path, _MISSING), select(cpu, key.path, _MISSING)
            text = _code(default) if default == on_cpu else f"{_code(default)} (cpu: {_code(on_cpu)})"
            name = key.path.removeprefix(f"{section.path}.")
            parts.append(f"| `{name}` | {values(key.schema)} | {text} | {_meaning(key)} |")
        parts.append("")
    parts.append(_VERLS)
    for path in (CONFIG_DIR / "agentevolver.yaml", *sorted((CONFIG_DIR / "device").glob("*.yaml"))):
        parts.append(f"`{path.relative_to(CONFIG_DIR)}`:\n\n```yaml\n{path.read_text(encoding='utf-8')}```\n")
    parts.append(_REFUSED)
    for why, patterns in UNREAD.items():
        parts.append(f"| {_codes(patterns)} | {why} |")
    for patterns, switch, read in READ_WITH:
        parts.append(f"| {_codes(patterns)} | read with `{switch}` = {' or '.join(map(_code, read))} alone |")
    return "\n".join(parts) + "\n"


def _first(model: type[BaseModel]) -> str:
    # `inspect.getdoc` would take that of pydantic's base class.
    return inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _codes(patterns: str) -> str:
    return ", ".join(f"`{one}`" for one in patterns.split())


def _code(value: Any) -> str:
    """Return a value as yaml, escaped for a table cell."""
    if value is _MISSING:
        return "not set"
    plain = isinstance(value, str) and value and not set(value) & set('\n|`"')
    text = str(value) if plain else json.dumps(value, ensure_ascii=False)
    return f"`{text.replace('|', chr(92) + '|')}`"


def _meaning(key: Key) -> str:
    text = str(key.schema.get("description", "")).replace("|", "\\|")
    if key.path in FREE_FORM:
        text += "; any keys"
    preset = key.path.removeprefix("exp_manager.")
    if key.path.startswith("exp_manager.") and preset in PRESETS["default"]:
        text += "; null by preset: " + ", ".join(f"{name} {_code(table[preset])}" for name, table in PRESETS.items())
    return text


def values(schema: Mapping[str, Any]) -> str:
    """Describe the accepted values of a field: names, or a type with bounds, and whether null is allowed."""
    kinds = schema.get("anyOf", [schema])
    words = [_words(kind) for kind in kinds if kind.get("type") != "null"]
    return ", ".join(words) + (" or null" if len(words) < len(kinds) else "")


def _words(kind: Mapping[str, Any]) -> str:
    names = kind.get("enum", [kind["const"]] if "const" in kind else [])
    if names:
        return ", ".join(f"`{json.dumps(name).strip(chr(34))}`" for name in names)
    word = "path" if kind.get("format") == "path" else _TYPES.get(kind.get("type", "object"), kind.get("type", ""))
    bounds = [f"{sign} {str(kind[name]).removesuffix('.0')}" for name, sign in _BOUNDS.items() if name in kind]
    return f"{word} {' and '.join(bounds)}".strip()


if __name__ == "__main__":
    sys.stdout.write(page())

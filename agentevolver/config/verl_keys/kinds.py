"""Kinds of values that verl's keys take: as the dataclass says that verl will make of its section,
else as its default shows.

The dataclasses are read in verl's source, not imported: importing them takes torch and some ten seconds.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

# Where verl declares what `_target_` names, within its package.
SOURCES = ("workers/config", "trainer/config", "utils/profiler/config.py", "utils/skip/config.py", "base_config.py")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "list": "a list",
    "mapping": "a mapping",
}
_NAMES = {
    "int": "int",
    "float": "float",
    "str": "str",
    "bool": "bool",
    "dict": "mapping",
    "Mapping": "mapping",
    "list": "list",
    "tuple": "list",
}


@dataclass(frozen=True)
class Kind:
    """The kinds of values that a key takes.

    Attributes:
        names: of `int`, `float`, `str`, `bool`, `list`, `mapping`; empty: any value.
        null: whether null is taken.
        items: the kind of a list's items, where it is known.
        model: the dataclass of a section, where this is one.
    """

    names: frozenset[str] = frozenset()
    null: bool = False
    items: Kind | None = None
    model: str | None = None

    @classmethod
    def of(cls, *names: str, null: bool = False, items: Kind | None = None) -> Kind:
        """Return a kind of these names."""
        return cls(frozenset(names), null, items)

    def takes(self, value: Any) -> bool:
        """Whether a value is of this kind. A number takes an integer, an integer no other number,
        and nothing takes `nan`."""
        if not self.names:
            return True
        if value is None:
            return self.null
        if isinstance(value, list | tuple):
            return "list" in self.names and (self.items is None or all(self.items.takes(item) for item in value))
        found = _name(value)
        if found == "float":
            return "float" in self.names and not math.isnan(value)
        return found in self.names or (found == "int" and "float" in self.names)

    @property
    def words(self) -> str:
        """What may be written, in words."""
        parts = [
            _WORDS[name] for name in _WORDS if name in self.names and not (name == "int" and "float" in self.names)
        ]
        if self.items is not None and self.items.names:
            parts = [f"{part} (each item {self.items.words})" if part == _WORDS["list"] else part for part in parts]
        return " or ".join([*parts, *(["null"] if self.null else [])])


def kind_of(path: str, defaults: DictConfig) -> Kind | None:
    """Return the kind of a key's values; None where neither a dataclass nor a default says it.

    Args:
        path: the key.
        defaults: the composed defaults, in which `_target_` names the dataclasses.
    """
    *sections, leaf = path.split(".")
    node: Any = defaults
    model: str | None = None
    for section in sections:
        field = fields_of(model).get(section) if model else None
        node = node._get_node(section) if isinstance(node, DictConfig) and section in node else None
        target = node.get("_target_") if isinstance(node, DictConfig) else None
        model = str(target).rpartition(".")[2] if target else (field.model if field is not None else None)
    default = OmegaConf.select(defaults, path, throw_on_missing=False)
    kind = fields_of(model).get(leaf) if model else None
    if kind is not None and not kind.model:
        return replace(kind, null=True) if default is None else kind
    return None if default is None else _shown_by(default)


def _shown_by(default: Any) -> Kind | None:
    if OmegaConf.is_config(default):
        return Kind.of("list") if OmegaConf.is_list(default) else Kind.of("mapping")
    return Kind.of(_name(default))


def _name(value: Any) -> str:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"), (Mapping, "mapping")):
        if isinstance(value, kind):
            return name
    return type(value).__name__


# -- verl's dataclasses
# -------------------------------------------------------------------------------------------------------------------


@functools.cache
def fields_of(model: str) -> Mapping[str, Kind]:
    """Return the fields of one of verl's dataclasses, those of its bases too; none if it is not found."""
    node = _class(model)
    if node is None:
        return {}
    found: dict[str, Kind] = {}
    for base in reversed(node.bases):
        found |= fields_of(ast.unparse(base).rpartition(".")[2])
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = _annotated(statement.annotation)
    return found


def _class(name: str) -> ast.ClassDef | None:
    for path, text in _sources():
        if re.search(rf"^class {re.escape(name)}\b", text, re.MULTILINE):
            return next(node for node in _parsed(path).body if isinstance(node, ast.ClassDef) and node.name == name)
    return None


@functools.cache
def _sources() -> tuple[tuple[Path, str], ...]:
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.submodule_search_locations is not None, (
        "the defaults were composed from verl's files"
    )
    root = Path(spec.submodule_search_locations[0])
    return tuple((path, path.read_text(encoding="utf-8")) for path in _files(root))


def _files(root: Path) -> Iterator[Path]:
    for place in SOURCES:
        yield from sorted((root / place).glob("*.py")) if (root / place).is_dir() else [root / place]


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _annotated(node: ast.expr) -> Kind:
    """Return the kind that an annotation stands for."""
    if isinstance(node, ast.Constant):
        return Kind(null=True) if node.value is None else _annotated(ast.parse(str(node.value), mode="eval").body)
    if isinstance(node, ast.BinOp):
        return _either([_annotated(node.left), _annotated(node.right)])
    if isinstance(node, ast.Subscript):
        return _subscripted(ast.unparse(node.value).rpartition(".")[2], node.slice)
    name = ast.unparse(node).rpartition(".")[2]
    if name in _NAMES:
        return Kind.of(_NAMES[name])
    return Kind() if name in ("Any", "Callable") else Kind(frozenset({"mapping"}), model=name)


def _subscripted(head: str, inside: ast.expr) -> Kind:
    parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    if head in ("Optional", "Union"):
        return _either([*map(_annotated, parts), *([Kind(null=True)] if head == "Optional" else [])])
    if head == "Literal":
        return Kind.of(*{_name(ast.literal_eval(part)) for part in parts})
    if head in ("list", "List", "tuple", "Tuple", "Sequence"):
        return Kind.of("list", items=_annotated(parts[0]))
    return Kind.of("mapping")


def _either(kinds: Iterable[Kind]) -> Kind:
    """Return the union of kinds; any value if one of them takes any."""
    listed = list(kinds)
    null = any(kind.null for kind in listed)
    if any(not kind.names and not kind.null for kind in listed):
        return Kind(null=null)
    names = frozenset[str]().union(*(kind.names for kind in listed))
    items = next((kind.items for kind in listed if kind.items is not None), None)
    return Kind(names, null, items, next((kind.model for kind in listed if kind.model), None))

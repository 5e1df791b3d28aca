"""Readers are found by the types of what they access, not by names."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from agentevolver.config.reference import readers as module
from agentevolver.config.reference.readers import Readers


class Base(BaseModel):
    inherited: int = 0


class Inner(BaseModel):
    size: int = 0
    unread: int = 0
    by_property: int = 0
    by_method: int = 0
    checked: int = 0
    dumped: int = 0


class Outer(Base):
    inner: Inner = Inner()
    size: int = 0
    looped: tuple[Inner, ...] = ()


MODELS = """
from pydantic import BaseModel, model_validator

class Base(BaseModel):
    inherited: int = 0

class Inner(BaseModel):
    size: int = 0
    unread: int = 0
    by_property: int = 0
    by_method: int = 0
    checked: int = 0
    dumped: int = 0

    @property
    def doubled(self) -> int:
        return self.by_method_of(self.by_property)

    def by_method_of(self, x: int) -> int:
        return x + self.by_method

    @model_validator(mode="after")
    def _check(self) -> "Inner":
        assert self.checked
        return self

class Outer(Base):
    inner: Inner = Inner()
    size: int = 0
    looped: tuple[Inner, ...] = ()
"""

USES = """
from dataclasses import dataclass, fields
from pkg.models import Inner, Outer

class Other:
    unread: int = 0
    size: int = 0

@dataclass
class Copied:
    dumped: int | None = None

def copy(inner: Inner) -> Copied:
    return Copied(**{field.name: getattr(inner, field.name) for field in fields(Copied)})

class Holder:
    def __init__(self, outer: "Outer | None") -> None:
        self._inner = outer.inner
        self._other = Other()

    def work(self) -> int:
        return self._inner.doubled + self._other.unread

def inherited(outer: Outer) -> int:
    return [lambda: outer.inherited for _ in range(3)][0]()

def loops(outer: Outer) -> list[int]:
    inner = Other()
    return [inner.size for inner in [inner]] + [each.size for each in outer.looped]
"""
LATER = """
from pkg.uses import copy
from pkg.models import Inner

def later(inner: Inner):
    copied = copy(inner)
    return copied.dumped
"""


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Readers of a made-up package whose models stand in for those above."""
    package = tmp_path / "pkg"
    package.mkdir()
    for name, text in (("__init__", ""), ("models", MODELS), ("uses", USES), ("later", LATER)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.setattr(module, "PACKAGES", ("pkg",))
    for model in (Base, Inner, Outer):
        monkeypatch.setattr(model, "__module__", "pkg.models")
    return Readers([Outer, Inner], tmp_path)


@pytest.mark.parametrize(
    ("model", "name", "files"),
    [
        (Outer, "inner", ("pkg/uses.py",)),
        (Outer, "inherited", ("pkg/uses.py",)),
        (Outer, "looped", ("pkg/uses.py",)),
        (Inner, "size", ("pkg/uses.py",)),
        (Inner, "by_property", ("pkg/uses.py",)),
        (Inner, "by_method", ("pkg/uses.py",)),
        (Inner, "dumped", ("pkg/later.py",)),
    ],
)
def test_a_field_is_read_where_an_object_of_its_class_is_accessed(found, model, name, files):
    assert found.of(model, name) == files


@pytest.mark.parametrize(("model", "name"), [(Inner, "unread"), (Inner, "checked"), (Outer, "size")])
def test_a_field_of_the_same_name_elsewhere_or_a_look_of_a_validator_reads_nothing(found, model, name):
    assert found.of(model, name) == ()


def test_paths_are_those_of_the_checkout():
    assert (module.ROOT / "launcher.py").is_file() and Path(module.__file__).is_relative_to(module.ROOT)

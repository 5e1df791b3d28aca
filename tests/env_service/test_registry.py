"""Names come from the table, the entry points and the command line; never anything else."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint

import pytest
from counter_envs import Counter

from env_service import registry
from env_service.registry import BUILT_IN, RegistryError, known_environments, load, resolve


def test_an_option_makes_a_class_known_under_a_name() -> None:
    assert resolve(["mine"], ["mine=counter_envs:Counter"]) == {"mine": "counter_envs:Counter"}
    assert load("counter_envs:Counter") is Counter


def test_an_installed_package_can_add_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("extra", "pkg.mod:Cls", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "agentevolver.environments" else [])
    assert known_environments()["extra"] == "pkg.mod:Cls"
    assert importlib.metadata.entry_points is not registry.entry_points


def test_an_entry_point_cannot_take_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("pocket", "evil.mod:Cls", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert known_environments()["pocket"] == BUILT_IN["pocket"]


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(RegistryError, match="did you mean 'pocket'"):
        resolve(["pokcet"])
    with pytest.raises(RegistryError, match="--env-module NAME="):
        resolve(["zzz"])


@pytest.mark.parametrize("text", ["x", "x=", "x=os", "x=../a:B", "x=a b:C", "=a:B", "x=a:B()", "../x=a:B", "x=a:B:C"])
def test_a_malformed_option_is_refused(text: str) -> None:
    with pytest.raises(RegistryError, match="NAME=package"):
        known_environments([text])


@pytest.mark.parametrize(
    ("spec", "message"),
    [("no_such_module:X", "cannot import"), ("counter_envs:Missing", "must be a subclass"), ("json:JSONDecoder", "must be a subclass")],
)
def test_a_class_that_cannot_be_hosted_is_named(spec: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        load(spec)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_environment_loads(name: str) -> None:
    assert load(BUILT_IN[name]).isolation in ("shared", "isolated")

"""Names come from the table, the entry points and the command line; never anything else."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from counter_envs import Counter

from env_service import registry
from env_service.checker import LocalProbe
from env_service.registry import BUILT_IN, Registry, RegistryError, known_environments, load, resolve


def test_an_option_makes_a_class_known_under_a_name() -> None:
    assert resolve(["mine"], ["mine=counter_envs:Counter"]) == {"mine": "counter_envs:Counter"}
    assert load("counter_envs:Counter") is Counter


def test_a_class_written_for_the_original_is_hosted_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moonlight.py").write_text(ORIGINAL)
    monkeypatch.syspath_prepend(tmp_path)
    env_class = load(resolve(["moonlight"], ["moonlight=moonlight:MoonlightEnv"])["moonlight"])
    assert Registry.get("moonlight") is env_class
    probe = LocalProbe(env_class)
    instance_id, opening = probe.create(probe.tasks("train")[0], {"is_open_query": False})
    assert opening["state"][-1]["content"] == "say moon"
    step = probe.step(instance_id, {"role": "assistant", "content": "moon"})
    assert step["is_terminated"] and probe.evaluate(instance_id, {"sparse": True}) == 1.0
    with pytest.raises(KeyError, match=r"no environment .sun. was registered; there are .*moonlight"):
        Registry.get("sun")
    with pytest.raises(TypeError, match="must be a subclass"):
        Registry.register("dict")(dict)


# In the form of AgentEvolver's own classes (its guide to new environments): imports, decorator, signatures.
ORIGINAL = """
from env_service.base import BaseEnv
from env_service.registry import Registry

@Registry.register("moonlight")
class MoonlightEnv(BaseEnv):
    def __init__(self, task_id: str = None, instance_id: str = None, params: dict = None):
        self.task_id, self.instance_id, self.said = task_id, instance_id, ""

    def get_init_state(self, params: dict = None):
        state = [{"role": "system", "content": "say the word"}, {"role": "user", "content": "say moon"}]
        return {"state": state, "info": {"instance_id": self.instance_id, "task_id": self.task_id}}

    def step(self, action: dict, params: dict = None):
        self.said = action.get("content", "")
        over = "moon" in self.said
        return {"state": [{"role": "user", "content": "ok"}], "reward": 0, "is_terminated": over, "info": {}}

    def evaluate(self, messages: dict = None, params: dict = None):
        return 1.0 if "moon" in self.said else 0.0

    def get_info(self, messages: dict = None, params: dict = None):
        return ""

    def close(self):
        pass

    @staticmethod
    def get_query_list(split: str = "train", params: dict = None):
        return ["1", "2"]
"""


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
    [
        ("no_such_module:X", "cannot import"),
        ("counter_envs:Missing", "must be a subclass"),
        ("json:JSONDecoder", "must be a subclass"),
    ],
)
def test_a_class_that_cannot_be_hosted_is_named(spec: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        load(spec)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_environment_loads(name: str) -> None:
    assert load(BUILT_IN[name]).isolation in ("shared", "isolated")

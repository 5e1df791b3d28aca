from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from env_service import registry
from env_service.checker import LocalProbe
from env_service.registry import Registry, RegistryError, environment_folders, known_environments, load, resolve


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


def test_folders_and_packages_add_environments_and_a_folder_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [EntryPoint("extra", "pkg.mod:Cls", registry.ENTRY_POINT_GROUP), EntryPoint("moon", "evil.mod:Cls", "")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "agentevolver.environments" else [])
    monkeypatch.setattr(registry, "FOLDERS", tmp_path)
    register(tmp_path / "sky", 'imports = ["sea"]\n[serves]\nmoon = "env:MoonEnv"\n')
    (tmp_path / "not_registered").mkdir()
    assert known_environments() == {"extra": "pkg.mod:Cls", "moon": "env_service.environments.sky.env:MoonEnv"}
    assert known_environments(["moon=mine:Moon"])["moon"] == "mine:Moon"
    assert [folder.imports for folder in environment_folders()] == [("sea",)]


@pytest.mark.parametrize("text", ["", "[serves", "[serves]\n[skeletons.x]\nwrite = 'a:b'"])
def test_a_registration_that_cannot_be_read_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "FOLDERS", tmp_path)
    register(tmp_path / "sky", text)
    with pytest.raises(RegistryError, match=r"sky/environment\.toml is not a registration"):
        known_environments()


def register(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / registry.REGISTRATION).write_text(text)


def test_finding_imports_no_environment() -> None:
    code = (
        "import sys; from env_service.registry import known_environments as known; known(); "
        "print(*(name for name in sys.modules if name.startswith('env_service.environments')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("text", ["x", "x=os", "x=../a:B", "=a:B", "x=a:B()", "../x=a:B"])
def test_a_malformed_option_is_refused(text: str) -> None:
    with pytest.raises(RegistryError, match="NAME=package"):
        known_environments([text])


def test_folders_declare_what_they_import() -> None:
    for folder in registry.environment_folders():
        text = "".join(path.read_text(encoding="utf-8") for path in folder.path.rglob("*.py"))
        used = set(re.findall(r"env_service\.environments\.(\w+)", text)) - {folder.path.name}
        assert used == set(folder.imports), folder.path


# The environment of a file of sections that names none; words of paths.
DEFAULTS = {("settings.py", "pocket"), ("own_venv.py", "python"), ("cli.py", "python")}


@pytest.mark.parametrize("package", ["env_service", "task_manager"])
def test_the_core_and_the_task_manager_name_no_environment(package: str) -> None:
    known = known_environments()
    named = {
        (path.name, node.value)
        for path in sorted((Path(__file__).parents[2] / package).rglob("*.py"))
        if registry.FOLDERS not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known
    }
    assert named <= DEFAULTS

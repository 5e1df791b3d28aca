"""docs/bring_your_own.md: what it shows is done here, command by command, but for the training."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from advantage_processor.settings import AttributionSettings
from agentevolver.config.checks import load
from env_service.checker import LocalProbe, run_checks
from env_service.cli import main as env_service
from env_service.registry import resolve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bring_your_own.md").read_text(encoding="utf-8")
ENV_MODULE = "last_word=last_word.env:LastWordEnv"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def block(language, start):
    (found,) = [text for text in blocks(language) if text.startswith(start)]
    return found


COMMANDS = [shlex.split(line) for text in blocks("bash") for line in text.splitlines()]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package as somebody has it who followed the page, in a folder that can be imported from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert env_service(["new", "last_word"]) == 0
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "last_word"]:
        del sys.modules[name]


@pytest.fixture
def garden(tmp_path, monkeypatch):
    """The world of other words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert env_service(["new", "garden"]) == 0
    (tmp_path / "garden" / "env.py").write_text(block("python", '"""Two plants that are not well'))
    (tmp_path / "garden" / "demos.py").write_text(block("python", '"""Demonstrations with'))
    yield tmp_path / "garden"
    for name in [name for name in sys.modules if name.split(".")[0] == "garden"]:
        del sys.modules[name]


def test_the_garden_keeps_the_contract(garden):
    module = importlib.import_module("garden.env")
    assert not [found for found in run_checks(LocalProbe(module.GardenEnv), action="water fern") if found.problem]
    assert not set(module.TASKS["train"]) & set(module.TASKS["dev"])


@pytest.mark.recipe("offline")
@pytest.mark.environment("pocket")
def test_the_gardens_demonstrations_can_be_played(garden):
    from agentevolver.recipes.offline.seed.demonstrations import played, read_demonstrations

    module = importlib.import_module("garden.env")
    importlib.import_module("garden.demos")
    shown = [played(module.GardenEnv, one) for one in read_demonstrations(garden / "demos.jsonl")[:400]]
    assert 0.3 < sum(one.score for one in shown) / len(shown) < 0.5


@pytest.mark.service
def test_the_environment_passes_its_own_tests_and_the_check(package, capsys):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "last_word"],
        cwd=package,
        env={"PYTHONPATH": f"{package}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0 and " passed" in result.stdout, result.stdout + result.stderr
    (check,) = [words for words in COMMANDS if words[:4] == ["python", "-m", "env_service", "check"]]
    assert env_service(check[3:]) == 0, capsys.readouterr().out


def test_the_experiment_that_new_writes_names_splits_that_the_environment_has(package):
    resolved = load(package / "last_word" / "train.yaml", ["device=cpu"])
    assert resolve(["last_word"], [ENV_MODULE]) == {"last_word": "last_word.env:LastWordEnv"}
    module = importlib.import_module("last_word.env")
    data = resolved.settings.data
    for split in (data.train_split, *data.val_splits):
        assert module.LastWordEnv.get_query_list(split)
    assert len(module.TASKS["train"]) >= resolved.settings.sizes.train_batch_size
    assert not set(module.TASKS["train"]) & set(module.TASKS["dev"])
    assert resolved.experiment_dir == Path("experiments/last_word/first")


def test_the_stage_of_the_other_page_is_taken_by_the_section_and_clips():
    section = AttributionSettings.model_validate(
        yaml.safe_load(block("yaml", "attribution"))["attribution_driven_credit_assignment"]
    )
    stage = next(stage for stage in section.stages if stage.use.endswith(":Clip"))
    page = (ROOT / "docs" / "advantage_processor.md").read_text(encoding="utf-8")
    (code,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Clip" in text]
    scope = {}
    exec(code, scope)
    result = scope["Clip"](None, **stage.options)(None, torch.tensor([[3.0, -1.0]]))
    assert result.advantages.tolist() == [[2.0, -1.0]] and result.metrics == {"advantage/clipped_rate": 0.5}

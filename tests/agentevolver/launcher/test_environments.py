"""Environments and splits are looked at before anything is started."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from agentevolver.launcher.environments import check_environments, splits
from agentevolver.launcher.options import Options
from agentevolver.utils.errors import UsageError
from tests.agentevolver.launcher.fakes import FakeConfiguration, env_section

CONF = Options(conf=Path("x.yaml"))


def configuration(tmp_path: Path, **data: Any) -> FakeConfiguration:
    tree = {"data": {"train_split": "train", "train_filter": {}, "val_splits": ["dev"], "val_filter": {"n": 3}, **data}}
    return FakeConfiguration(experiment_dir=tmp_path, config=OmegaConf.create(tree))


@pytest.mark.thorough
def test_a_split_that_is_not_there_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^data.val_splits: there is no split 'tset'; splits are train, dev, test"):
        check_environments(CONF, configuration(tmp_path, val_splits=["dev", "tset"]))


@pytest.mark.thorough
def test_a_class_that_ends_the_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ending.py").write_text(
        "import os, sys\nprint('no licence', file=sys.stderr, flush=True)\nos._exit(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    options = replace(CONF, env_modules=("mine=ending:Mine",))
    with pytest.raises(UsageError, match=r"importing .*ending:Mine ends the process with status 3: no licence"):
        check_environments(options, configuration(tmp_path))


def mixture(tmp_path: Path, **changes: Any) -> FakeConfiguration:
    own = {"train_filter": {"worlds": ["Taxi-v4"]}, "val_splits": ["val"], "val_filter": {}, **changes}
    section = env_section(env_type={"pocket": 1, "gymnasium": 2}, environments={"gymnasium": own})
    return replace(configuration(tmp_path), env_service=section)


@pytest.mark.thorough
def test_each_environment_of_several_is_asked_for_its_own_splits(tmp_path: Path) -> None:
    asked = splits(mixture(tmp_path))
    assert [(key, item["env_type"], item["split"], item["params"]) for key, item in asked] == [
        ("data.train_split", "pocket", "train", {}),
        ("data.val_splits", "pocket", "dev", {"n": 3}),
        ("data.train_split", "gymnasium", "train", {"worlds": ["Taxi-v4"]}),
        ("env_service.environments.gymnasium.val_splits", "gymnasium", "val", {}),
    ]
    check_environments(CONF, mixture(tmp_path))
    with pytest.raises(UsageError, match=r"^env_service.environments.gymnasium.val_splits: .*unknown split 'tset'"):
        check_environments(CONF, mixture(tmp_path, val_splits=["tset"]))


def test_what_is_not_trained_on_is_not_listed_for_training(tmp_path: Path) -> None:
    section = env_section(env_type={"pocket": 0, "gymnasium": 2}, environments={"gymnasium": {"val_splits": []}})
    asked = splits(replace(configuration(tmp_path), env_service=section))
    assert [(key, item["env_type"]) for key, item in asked] == [
        ("data.val_splits", "pocket"),
        ("data.train_split", "gymnasium"),
    ]

from pathlib import Path
from typing import ClassVar

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import load
from agentevolver.trainer.job import main, openings, questioning
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from env_service.client import EnvRequestError
from env_service.contract import NO_NATIVE_TOOLS
from task_manager.dataset import TaskDataset

TWO = "env_service.env_type={pocket: 2, gymnasium: 1}"
OWN = (
    "env_service.environments.gymnasium={val_splits: [val], val_filter: {worlds: [Taxi-v4]}, "
    "val_env_params: {max_steps: 4}}"
)


class Service:
    """Environments whose splits hold tasks of the same ids, and whose creates are remembered."""

    asked: ClassVar[list] = []
    ids: ClassVar[list] = ["0", "1", "2"]

    def __init__(self, *_, **__):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def get_env_profile(self, env_type, split="train", params=None):
        self.asked.append((env_type, split, params))
        return self.ids

    async def create_instance(self, env_type, task_id, instance_id, params):
        self.asked.append((env_type, task_id, params))
        if "native_tools" in params and env_type == "gymnasium":
            raise EnvRequestError(f"Walk {NO_NATIVE_TOOLS}", url="/create", status=400)
        return {"state": [{"role": "system", "content": "rules"}, {"role": "user", "content": "buy milk"}]}

    async def release_instance(self, _):
        pass


@pytest.fixture(autouse=True)
def service(monkeypatch):
    for module in (main, openings):
        monkeypatch.setattr(module, "AsyncEnvClient", Service)
    monkeypatch.setattr(Service, "asked", [])


def settings_of(tmp_path, *overrides):
    items = ["device=cpu", f"experiment.root={tmp_path}", TWO, OWN, "env_service.val_env_params.slack=1"]
    return load(None, [*items, *overrides]).settings


def listed(settings):
    config = OmegaConf.create({"data": {"train_files": None, "val_files": None}})
    originals, held_out = main.list_tasks(config, settings)
    return config, originals, held_out


def test_each_environments_splits_are_listed_as_it_is_said_and_metrics_are_apart(tmp_path):
    config, originals, held_out = listed(settings_of(tmp_path))
    assert Service.asked == [
        ("pocket", "train", {}),
        ("gymnasium", "train", {}),
        ("pocket", "dev", {}),
        ("gymnasium", "val", {"worlds": ["Taxi-v4"]}),
    ]
    assert [(task.env_type, task.task_id) for task in originals] == [
        (name, str(i)) for name in ("pocket", "gymnasium") for i in range(3)
    ]
    assert all(task.is_validation for task in held_out)
    rows = TaskDataset(config.data.val_files, None, None)
    assert [rows[i]["data_source"] for i in range(6)] == ["pocket/dev"] * 3 + ["gymnasium/val"] * 3


def test_a_resumed_run_sees_the_same_tasks_in_the_same_order_and_lists_them_anew_where_a_file_is_gone(
    tmp_path, monkeypatch
):
    settings = settings_of(tmp_path)
    config, *first = listed(settings)
    asked = len(Service.asked)
    monkeypatch.setattr(Service, "ids", ["2", "1", "0"])
    resumed, *again = listed(settings)
    assert again == first and resumed == config and len(Service.asked) == asked == 4
    for lost in (config.data.val_files, config.data.train_files):
        Path(lost).unlink()
        Service.asked.clear()
        _, originals, held_out = listed(settings)
        assert len(Service.asked) == 4
        for tasks in (originals, held_out):
            assert [task.task_id for task in tasks] == Service.ids * 2
        monkeypatch.setattr(Service, "ids", ["1", "2", "0"])


async def test_an_environment_without_native_tools_acts_by_text_where_it_is_said_to_and_else_is_refused(tmp_path):
    class Renderer:
        def for_tools(self, tools):
            raise AssertionError("no tools are handed over")

        def opening(self, messages):
            return [0] * 9

    native = ("actor_rollout_ref.rollout.tool_format=hermes", "env_service.env_type.pocket=0")
    tasks = [Task("0", "gymnasium")]
    with pytest.raises(
        ConfigError,
        match=r"'gymnasium' lists no tools .*, or env_service.environments.gymnasium.native_tools to false",
    ):
        await main.probe(settings_of(tmp_path, *native), tasks, Renderer())
    Service.asked.clear()
    own = "env_service.environments.gymnasium.native_tools=false"
    assert await main.probe(settings_of(tmp_path, *native, own), tasks, Renderer()) == 9
    assert Service.asked == [("gymnasium", "0", {"is_open_query": False})]
    with pytest.raises(ConfigError, match=r"gymnasium.native_tools has no effect while .*tool_format = none"):
        settings_of(tmp_path, own)


@pytest.mark.thorough
def test_an_epoch_that_cannot_be_shared_out_is_refused_before_anything_is_loaded(tmp_path):
    originals = [Task(str(i), name) for name in ("pocket", "gymnasium") for i in range(30)]
    assert questioning.prepare(settings_of(tmp_path, "data.train_batch_size=4"), originals) == []
    with pytest.raises(
        ConfigError, match=r"^env_service.env_type: gymnasium: its weight gives it none of the 60 tasks"
    ):
        questioning.prepare(settings_of(tmp_path, "env_service.env_type.pocket=1000"), originals)
    with pytest.raises(ConfigError, match=r"^env_service.env_type: gymnasium: the mixture is empty"):
        questioning.prepare(settings_of(tmp_path), originals[:30])
    with pytest.raises(ConfigError, match="an epoch has 60 tasks"):
        questioning.prepare(
            settings_of(tmp_path, "data.train_batch_size=64", "actor_rollout_ref.rollout.n=1"), originals
        )

from pathlib import Path
from typing import ClassVar

import pytest

from agentevolver.config.checks import load
from agentevolver.trainer import experience as navigating
from agentevolver.trainer.experience import prepare, scout_path, warm_start_path
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError, TrainingFailed
from task_manager.tasks import read_tasks
from tests.constants import ENDPOINT

EXAMPLE = Path(__file__).parents[3] / "examples" / "navigating.yaml"
TASKS = [Task(f"note_add.k1.{i}", "pocket", metadata={"split": "train", "validation": False}) for i in range(8)]
HELD_OUT = [Task(f"note_add.k17.{i}", "pocket", metadata={"split": "test", "validation": True}) for i in range(3)]


class Lister:
    """An environment service with five tasks in every split."""

    asked: ClassVar[list] = []

    def __init__(self, *args, **kwargs):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def get_env_profile(self, env_type, split="train", params=None):
        self.asked.append((split, params))
        return [f"note_add.k17.{i}" for i in range(5)] if split == "test" else []


def settings_of(tmp_path, *overrides):
    items = (
        "device=cpu",
        "actor_rollout_ref.model.path=x",
        f"experiment.root={tmp_path}",
        "exp_manager.encoder.kind=hashing",
        *ENDPOINT,
        *overrides,
    )
    return load(EXAMPLE, list(items)).settings


@pytest.fixture(autouse=True)
def lister(monkeypatch):
    monkeypatch.setattr(navigating, "AsyncEnvClient", Lister)
    monkeypatch.setattr(Lister, "asked", [])


def test_the_warm_start_takes_training_tasks_and_the_scouts_what_is_not_validated_on(tmp_path):
    settings = settings_of(tmp_path, "exp_manager.init_tasks=5")
    prepare(settings, [*TASKS, *HELD_OUT])
    warm, scouts = read_tasks(warm_start_path(settings)), read_tasks(scout_path(settings))
    assert len(warm) == 5 and {task.task_id for task in warm} < {task.task_id for task in TASKS}
    assert [task.task_id for task in scouts] == ["note_add.k17.3", "note_add.k17.4"]
    assert all(task.metadata["scout"] and not task.metadata["validation"] for task in (*warm, *scouts))
    assert Lister.asked == [("test", {"n": 288})]


def test_a_run_that_goes_on_keeps_to_its_tasks(tmp_path):
    settings = settings_of(tmp_path, "exp_manager.init_tasks=5")
    prepare(settings, [*TASKS, *HELD_OUT])
    before = warm_start_path(settings).read_text(), scout_path(settings).read_text()
    prepare(settings, TASKS[:2])
    assert (warm_start_path(settings).read_text(), scout_path(settings).read_text()) == before


def test_scouts_that_would_only_see_the_evaluation_are_refused(tmp_path):
    everything = [Task(f"note_add.k17.{i}", "pocket", metadata={"validation": True}) for i in range(5)]
    with pytest.raises(ConfigError, match=r"scout.split = test: all of its 5 tasks are already used"):
        prepare(settings_of(tmp_path), [*TASKS, *everything])


def test_a_pool_that_cannot_be_used_ends_the_run_before_an_engine_is_started(tmp_path):
    settings = settings_of(tmp_path)
    settings.experiment_dir.mkdir(parents=True)
    (settings.experiment_dir / "experience.sqlite").write_bytes(b"no store at all" * 50)
    with pytest.raises(TrainingFailed, match=r"the experience pool cannot be used: .*is damaged or no store"):
        prepare(settings, [*TASKS, *HELD_OUT])

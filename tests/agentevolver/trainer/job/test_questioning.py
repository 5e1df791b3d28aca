import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentevolver.config.checks import load
from agentevolver.llm.embeddings import CachedEncoder, HashingEncoder
from agentevolver.trainer.job import questioning
from agentevolver.trainer.job.questioning import prepare
from agentevolver.types import Task
from agentevolver.utils.errors import ConfigError
from task_manager import synthetic_tasks as task_synthetic
from task_manager.settings import TaskManagerSettings
from task_manager.synthetic_tasks import funnel_metrics
from task_manager.tasks import write_objectives
from tests.task_manager.questioning_fakes import LocalDesk, Tutor

BASIC = Path(__file__).parents[4] / "examples" / "basic.yaml"
ORIGINALS = [Task(f"note_add.k1.{i}", "pocket") for i in range(8)]


class Model(Tutor):
    """The tutor, with what a run uses of `LLM` beside its answers."""

    prompted = 0

    def __init__(self, settings):
        super().__init__()
        self.ledger = SimpleNamespace(spent=lambda: SimpleNamespace(tokens=len(self.prompts), cost=0.0))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        type(self).prompted += len(self.prompts)


@pytest.fixture
def model(monkeypatch):
    made = type("Model", (Model,), {})
    monkeypatch.setattr(questioning, "LLM", made)
    monkeypatch.setattr(task_synthetic, "make_encoder", lambda *_: CachedEncoder(HashingEncoder()))
    monkeypatch.setattr(TaskManagerSettings, "unavailable_timeout_s", 0.0)
    monkeypatch.setattr(task_synthetic, "AsyncEnvClient", lambda *args, **kwargs: LocalDesk())
    return made


def settings_of(tmp_path, *overrides):
    section = (
        "n=1",
        "max_seed_tasks=4",
        "mixture.synthetic_data_ratio=1",
    )
    items = [f"task_manager.{item}" for item in section]
    items += ["device=cpu", "actor_rollout_ref.model.path=x", f"experiment.root={tmp_path}", "data.val_filter.n=6"]
    items += ["data.train_batch_size=8"]
    return load(BASIC, [*items, *overrides]).settings


@pytest.mark.thorough
def test_tasks_are_made_once_and_found_again(tmp_path, model):
    settings = settings_of(tmp_path)
    tasks = prepare(settings, ORIGINALS)
    assert len(tasks) >= 4 and all(task.evaluator == "state" and task.open_query for task in tasks)
    assert funnel_metrics(settings.experiment_dir)["questioning/kept"] == len(tasks)
    phase = json.loads((settings.experiment_dir / "status.json").read_text())["phase"]
    assert phase == f"making tasks: 4 of 4 explorations, {len(tasks)} tasks kept"
    asked = model.prompted
    assert prepare(settings, ORIGINALS) == tasks and model.prompted == asked > 0


@pytest.mark.thorough
def test_another_configurations_tasks_are_refused_and_so_are_somebody_elses_where_new_ones_are_asked_for(
    tmp_path, model
):
    prepare(settings_of(tmp_path), ORIGINALS)
    with pytest.raises(ConfigError, match="made by another configuration"):
        prepare(settings_of(tmp_path, "task_manager.synthesis.temperature=0.5"), ORIGINALS)
    foreign = tmp_path / "theirs.jsonl"
    write_objectives(foreign, [Task("a", "pocket", True, "q", "done")])
    before = foreign.read_bytes()
    with pytest.raises(ConfigError, match=r"tasks of another source: set task_manager\.n to 0"):
        prepare(settings_of(tmp_path, f"task_manager.train_data_path={foreign}"), ORIGINALS)
    assert foreign.read_bytes() == before

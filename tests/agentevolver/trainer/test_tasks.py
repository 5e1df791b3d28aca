from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config.checks import for_verl, load
from agentevolver.trainer import tasks as training
from agentevolver.trainer.loading import Loading
from agentevolver.trainer.tasks import TrainingTasks
from agentevolver.types import Task
from task_manager.tasks import write_objectives, write_tasks
from tests.constants import ENDPOINT
from tests.trajectories import trajectory

BASIC = Path(__file__).parents[3] / "examples" / "basic.yaml"
ORIGINALS = [Task(f"note_add.k1.{i}", "pocket", metadata={"split": "train"}) for i in range(8)]


def synthetic(count, start=0):
    return [
        Task(
            f"note_add.k2.{i}#0",
            "pocket",
            True,
            f"query {i}",
            "done",
            "state",
            {"seed_task_id": f"note_add.k2.{i}", "state_check": {}},
        )
        for i in range(start, start + count)
    ]


def resolved(tmp_path, *overrides):
    path = tmp_path / "synthetic.jsonl"
    write_objectives(path, synthetic(6))
    write_tasks(tmp_path / "train.jsonl", ORIGINALS)
    items = [
        "device=cpu",
        "actor_rollout_ref.model.path=x",
        f"experiment.root={tmp_path}",
        f"task_manager.train_data_path={path}",
    ]
    items += [
        "task_manager.mixture.synthetic_data_ratio=0.5",
        "task_manager.curriculum.enable=true",
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        *ENDPOINT,
    ]
    return load(BASIC, [*items, *overrides])


def record(task, success, group="g", rollout=0, outcome=True):
    graded = {"score": float(success), "success": bool(success), "reason": ""} if outcome else None
    return trajectory(task=task.to_dict(), group_id=group, rollout_id=rollout, outcome=graded, steps=[{}])


def test_an_epoch_mixes_both_kinds_and_the_curriculum_hears_of_each_step(tmp_path):
    settings = resolved(tmp_path).settings
    made = TrainingTasks(settings, tmp_path / "train.jsonl")
    assert len(made.dataset) == 8 + 4
    rows = [row for batch in made.dataset.loader(4, list) for row in batch]
    kinds = [row["task"]["open_query"] for row in rows]
    assert len(rows) == 12 and sum(kinds) == 4
    assert {row["task"]["metadata"].get("advantage_scale") for row in rows if row["task"]["open_query"]} == {0.5}
    metrics = made.after_rollouts(
        1, [record(synthetic(1)[0], 1, "a"), record(synthetic(1)[0], 1, "a", 1), record(ORIGINALS[0], 0, "b")]
    )
    assert metrics["task/synthetic_share"] == pytest.approx(2 / 3)
    assert metrics["task/success/synthetic"] == 1 and metrics["task/success/original"] == 0
    assert metrics["curriculum/known"] == 2


class FakeRounds:
    """In the place of `BackgroundQuestioning`: a round brings two new tasks when it is collected."""

    def __init__(self, configuration, folder):
        self.every = configuration.task_manager.curriculum.synthesize_every_epochs
        self.began, self.stopped, self.ready = [], False, None

    def is_due(self, epoch):
        return epoch > 0 and epoch % self.every == 0

    def start(self, preference):
        self.began.append(preference)

    def collect(self):
        ready, self.ready = self.ready, None
        return ready

    def stop(self):
        self.stopped = True


@pytest.mark.environment("pocket")
def test_a_round_begins_where_an_epoch_ends_and_its_tasks_join_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "BackgroundQuestioning", FakeRounds)
    settings = resolved(tmp_path, "task_manager.curriculum.synthesize_every_epochs=2").settings
    made = TrainingTasks(settings, tmp_path / "train.jsonl")
    size = len(made.dataset)
    made.steps_per_epoch, made.last_step = 3, 99
    for step in range(1, 6):
        made.after_step(step)
    assert made._background["pocket"].began == []
    made.after_rollouts(1, [record(ORIGINALS[i], 1, f"g{i}") for i in range(3)])
    made.after_step(6)
    (wish,) = made._background["pocket"].began
    assert wish != training.profile_for("pocket", None).task_preference, (
        "the policy succeeds, so the new tasks are to be harder"
    )
    made._background["pocket"].ready = synthetic(2, start=50)
    made.after_step(7)
    assert made.dataset.place("note_add.k2.50#0") is not None and len(made.dataset) == size
    drawn = {made.dataset.name(row) for _ in range(3) for row in made.dataset.draw()}
    assert {"note_add.k2.50#0", "note_add.k2.51#0"} <= drawn
    made.close()
    assert made._background["pocket"].stopped


def test_a_resumed_run_has_the_tasks_of_finished_rounds_and_epochs_of_the_same_size(tmp_path):
    settings = resolved(tmp_path, "task_manager.mixture.synthetic_data_ratio=1").settings
    size = len(TrainingTasks(settings, tmp_path / "train.jsonl").dataset)
    write_objectives(tmp_path / "synthetic.jsonl.round1", synthetic(2, start=50))
    made = TrainingTasks(settings, tmp_path / "train.jsonl")
    assert len(made.dataset) == size == 14 and made.dataset.place("note_add.k2.51#0") is not None


@pytest.mark.thorough
def test_training_is_as_long_as_the_epochs_that_are_drawn_and_the_schedule_too(tmp_path, monkeypatch):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from agentevolver.trainer.trainer import EvolverTrainerSync

    monkeypatch.setattr(PPOTrainerSync, "_init_dataloader", lambda self: setattr(self, "steps_per_epoch", 2))
    overrides = ["trainer.total_epochs=3", "trainer.total_training_steps=null"]
    config = for_verl(resolved(tmp_path, *overrides).config)
    config.data.train_files = str(tmp_path / "train.jsonl")
    OmegaConf.set_struct(config, True)
    trainer = object.__new__(EvolverTrainerSync)
    trainer.config, trainer.parameter_sync_step = config, 1
    trainer.settings = resolved(tmp_path, *overrides).settings
    Loading._init_dataloader(trainer)
    assert trainer.steps_per_epoch == 12 // 4
    assert trainer.total_training_steps == config.actor_rollout_ref.actor.optim.total_training_steps == 9
    assert len(next(iter(trainer.train_dataloader))["index"]) == 4


@pytest.mark.parametrize(("steps", "epochs"), [(6, 2), (7, 3), (9, 3), (10, 4)])
def test_there_are_as_many_epochs_as_the_steps_take(monkeypatch, steps, epochs):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from agentevolver.trainer.trainer import EvolverTrainerSync

    monkeypatch.setattr(PPOTrainerSync, "_init_dataloader", lambda self: setattr(self, "steps_per_epoch", 3))
    trainer = object.__new__(EvolverTrainerSync)
    trainer.settings, trainer._tasks = load(BASIC, ["device=cpu", "actor_rollout_ref.model.path=x"]).settings, None
    trainer.config = OmegaConf.create({"trainer": {"total_training_steps": steps, "total_epochs": 2}})
    Loading._init_dataloader(trainer)
    assert trainer.config.trainer.total_epochs == epochs
    trainer.config.trainer.update({"val_only": True, "total_epochs": 2})
    monkeypatch.setattr(PPOTrainerSync, "_init_dataloader", lambda self: setattr(self, "steps_per_epoch", 0))
    Loading._init_dataloader(trainer)
    assert trainer.config.trainer.total_epochs == 2

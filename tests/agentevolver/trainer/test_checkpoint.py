import errno
import json
import random
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from ray.exceptions import RayTaskError
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

from agentevolver.config.training import WatchdogSettings
from agentevolver.trainer.checkpoint import restore_state, save_state, writing
from agentevolver.trainer.checkpoints import MANIFEST, MARKER, STATE, problem_with, whole_checkpoints
from agentevolver.trainer.failures import FailureGuard
from agentevolver.trainer.monitor.log import RunLog
from agentevolver.trainer.monitor.watchdog import Watchdog
from agentevolver.trainer.parts import TrainerPart, TrainerParts
from agentevolver.utils.errors import TrainingFailed
from agentevolver.utils.files import append_jsonl, read_jsonl
from experience_manager.store import Store


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def raise_revision(path):
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'revision'")


@pytest.fixture
def pool(tmp_path):
    path = tmp_path / "experience.sqlite"
    Store(path, create=True).close()
    for _ in range(3):
        raise_revision(path)
    return path


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints" / "global_step_4"


def test_random_numbers_and_the_count_of_failed_steps_go_on_as_they_were(folder):
    save_state(folder, failed_in_a_row=1, pool=None)
    expected = draws()
    draws()
    assert restore_state(folder, pool=None) == 1
    assert draws() == expected
    assert [path.name for path in folder.iterdir()] == [STATE], "no draft is left"


def test_the_pool_may_have_grown_since_and_may_not_be_older_or_gone(folder, pool):
    save_state(folder, failed_in_a_row=0, pool=pool)
    assert restore_state(folder, pool=pool) == 0
    raise_revision(pool)
    assert restore_state(folder, pool=pool) == 0
    with sqlite3.connect(pool) as db:
        db.execute("UPDATE meta SET value = 2 WHERE key = 'revision'")
    with pytest.raises(TrainingFailed, match=r"is older \(change 2, the checkpoint knows 3\): restore the file"):
        restore_state(folder, pool=pool)
    pool.unlink()
    with pytest.raises(TrainingFailed, match="is gone: restore the file"):
        restore_state(folder, pool=pool)
    assert restore_state(folder, pool=None) == 0, "a run elsewhere that only takes the weights"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), r"\[Errno 28\] No space left on device"),
        (
            RayTaskError("save", "a traceback\nof many lines", OSError(errno.EIO, "Input/output error")),
            r"\[Errno 5\] Input/output error",
        ),
    ],
)
def test_what_keeps_a_checkpoint_from_being_written_is_one_line(tmp_path, error, reason):
    folder = tmp_path / "not_even_made" / "global_step_4"
    message = rf"global_step_4 could not be written \({reason}\), \d+ MiB are free there: free some space"
    with pytest.raises(TrainingFailed, match=message) as caught, writing(folder):
        raise error
    assert "\n" not in str(caught.value)


class Policy:
    """In the place of the actor's workers: a policy in a small file, and the checkpoint that one was read from."""

    read = None

    def save_checkpoint(self, folder, *_, **__):
        assert not Path(folder).parent.exists()
        Path(folder).mkdir(parents=True)
        torch.save({}, Path(folder, "model_world_size_1_rank_0.pt"))

    def load_checkpoint(self, local_path, **_):
        self.read = Path(local_path).parent


class Removing(Policy):
    """Removes earlier policies beyond the number that it is given, as verl's engines do (verl's own code)."""

    def __init__(self):
        self.checkpoints = BaseCheckpointManager.__new__(BaseCheckpointManager)
        self.checkpoints.previous_saved_paths = []

    def save_checkpoint(self, folder, *_, max_ckpt_to_keep):
        self.checkpoints.ensure_checkpoint_capacity(max_ckpt_to_keep)
        super().save_checkpoint(folder)
        self.checkpoints.register_checkpoint(folder, max_ckpt_to_keep)


class Part(TrainerPart):
    """A part with a file of its own in a checkpoint, that knows what it was restored from."""

    def __init__(self, name):
        self.name, self.restored = name, []

    def save(self, folder, *_):
        (folder / self.name).touch()

    def restore(self, folder):
        self.restored.append(folder)


class Pool(TrainerPart):
    """In the place of the experience manager, whose pool is set back under another condition."""

    beginning = Path("begin")

    def __init__(self):
        self.restored = []

    def save(self, folder, *_):
        (folder / "experience").touch()

    def restore_pool(self, folder):
        self.restored.append(folder)


def trainer_in(folder, step, **options):
    """A trainer with nothing but what its checkpoints are made of."""
    from agentevolver.trainer.trainer import EvolverTrainerSync  # seconds of CPU, which the other tests do not need

    trainer = EvolverTrainerSync.__new__(EvolverTrainerSync)
    options = {
        "default_local_dir": str(folder / "checkpoints"),
        "default_hdfs_dir": None,
        "del_local_ckpt_after_load": False,
        "resume_mode": "auto",
        "val_before_train": True,
    } | options
    trainer.config = OmegaConf.create({"trainer": options, "actor_rollout_ref": {"actor": {}}})
    trainer.trainer_mode, trainer.use_critic = trainer.verl_mode, False
    trainer.actor_rollout_wg, trainer.checkpoint_callback = Policy(), SimpleNamespace(on_save=lambda **_: None)
    trainer.settings = SimpleNamespace(
        exp_manager=SimpleNamespace(enabled=True, backend="embedded", store=None), experiment_dir=folder
    )
    trainer.directory, trainer.global_steps = folder, step
    trainer._failures = FailureGuard(0.5, 3)
    trainer._experience = Pool()
    trainer.parts = TrainerParts([Part("recipe"), Part("tasks"), trainer._experience])
    trainer._watchdog = Watchdog(WatchdogSettings(floor_s=1))
    trainer.train_dataloader = SimpleNamespace(
        state_dict=lambda: {"step": step, "told": trainer.told}, load_state_dict=lambda _: None
    )
    trainer.told = False
    return trainer


def save(trainer):
    """A checkpoint, as verl's loop writes it and the step's metrics let it count."""
    trainer._save_checkpoint()
    trainer.told = True
    trainer._step_is_told()


@pytest.fixture
def checkpoints(tmp_path):
    return tmp_path / "checkpoints"


def test_a_checkpoint_counts_when_its_steps_metrics_are_on_disk_and_holds_the_loader_as_it_is_then(
    tmp_path, pool, checkpoints
):
    first = trainer_in(tmp_path, 4)
    first._failures.in_a_row = 2
    first._save_checkpoint()
    assert (checkpoints / "global_step_4" / "actor").exists() and not whole_checkpoints(checkpoints), (
        "not before the step's metrics are on disk"
    )
    first.told = True
    RunLog(tmp_path, SimpleNamespace(log=lambda **_: None), first._step_is_told).log({"loss": 1.0}, 4)
    expected = draws()
    assert torch.load(checkpoints / "global_step_4" / "data.pt") == {"step": 4, "told": True}
    (checkpoints / MARKER).write_text("")  # torn
    second = trainer_in(tmp_path, 0)
    second._load_checkpoint()
    assert (second.global_steps, second._failures.in_a_row, second.config.trainer.val_before_train) == (4, 2, False)
    assert draws() == expected
    pool.unlink()
    with pytest.raises(TrainingFailed, match="is gone"):
        trainer_in(tmp_path, 0)._load_checkpoint()


def test_checkpoints_from_before_a_resume_count(tmp_path, pool, checkpoints):
    for step in (2, 4, 6, 8, 10):
        save(trainer_in(tmp_path, step, max_actor_ckpt_to_keep=2))  # a process each
        kept = sorted(int(path.name.rpartition("_")[2]) for path in checkpoints.glob("*_*_*") if path.is_dir())
        assert kept == [2, 4, 6, 8, 10][max(0, step // 2 - 2) : step // 2]
    assert all(problem_with(checkpoints / f"global_step_{step}") is None for step in kept)


@pytest.mark.parametrize(
    "one", [{"max_actor_ckpt_to_keep": 1, "max_critic_ckpt_to_keep": 1}, {"remove_previous_ckpt_in_save": True}]
)
def test_the_only_checkpoint_that_is_kept_stays_until_the_next_is_sealed(tmp_path, pool, checkpoints, one):
    trainer = trainer_in(tmp_path, 2, **one)
    trainer.actor_rollout_wg = Removing()
    save(trainer)
    trainer.global_steps = 4
    trainer._save_checkpoint()  # killed here
    assert [found.step for found in whole_checkpoints(checkpoints)] == [2]
    trainer._step_is_told()
    assert [path.name for path in checkpoints.glob("global*")] == ["global_step_4"]
    assert [found.step for found in whole_checkpoints(checkpoints)] == [4]
    assert {key: trainer.config.trainer[key] for key in one} == one


def test_the_checkpoint_that_a_run_goes_on_from_is_the_newest_from_then_on(tmp_path, pool, checkpoints):
    for step in (2, 4, 6):
        save(trainer_in(tmp_path, step))
    (checkpoints / "global_step_6" / MANIFEST).unlink()  # killed after verl's marker was written, before it was sealed
    trainer_in(tmp_path, 0)._load_checkpoint()
    assert [found.step for found in whole_checkpoints(checkpoints)] == [2, 4, 6]
    (checkpoints / MARKER).write_text("4")  # by hand
    trainer_in(tmp_path, 0, max_actor_ckpt_to_keep=2)._load_checkpoint()
    save(trainer_in(tmp_path, 5, max_actor_ckpt_to_keep=2))
    assert [found.step for found in whole_checkpoints(checkpoints)] == [4, 5], "the branch that was left goes first"


def test_a_run_falls_back_to_the_newest_whole_checkpoint_and_repeats_the_steps_since(
    tmp_path, pool, checkpoints, caplog
):
    for step in (2, 4):
        save(trainer_in(tmp_path, step))
        for number in (step - 1, step):
            append_jsonl(tmp_path / "metrics.jsonl", {"step": number})
    (checkpoints / "global_step_4" / STATE).unlink()
    trainer = trainer_in(tmp_path, 0)
    trainer._load_checkpoint()
    assert trainer.global_steps == 2 and (checkpoints / MARKER).read_text() == "2"
    assert "global_step_4 lacks trainer.pt; going on from global_step_2" in caplog.text
    assert [record["step"] for record in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2]


def test_no_run_starts_over_by_itself_and_one_that_is_told_to_leaves_nothing_to_go_on_from_by_mistake(
    tmp_path, pool, checkpoints
):
    save(trainer_in(tmp_path, 2))
    for step in range(3):
        append_jsonl(tmp_path / "metrics.jsonl", {"step": step})
    (checkpoints / "global_step_2" / "data.pt").unlink()
    with pytest.raises(
        TrainingFailed,
        match=r"metrics of 2 steps and no whole checkpoint \(global_step_2 lacks data\.pt\): give this run",
    ):
        trainer_in(tmp_path, 0)._load_checkpoint()
    trainer = trainer_in(tmp_path, 0, resume_mode="disable", val_only=True)
    trainer._load_checkpoint()
    assert trainer.global_steps == 0 and len(read_jsonl(tmp_path / "metrics.jsonl")) == 3, "it only looks"
    trainer = trainer_in(tmp_path, 0, resume_mode="disable")
    trainer._load_checkpoint()
    assert trainer.global_steps == 0 and read_jsonl(tmp_path / "metrics.jsonl") == []
    assert [path.name for path in checkpoints.iterdir()] == ["superseded-1"]
    trainer = trainer_in(tmp_path, 0)
    trainer._load_checkpoint()
    assert trainer._experience.restored == [Pool.beginning]


def test_a_checkpoint_is_sealed_with_every_part_in_it(tmp_path, pool, checkpoints):
    save(trainer_in(tmp_path, 4))
    sealed = json.loads((checkpoints / "global_step_4" / MANIFEST).read_text())
    assert set(sealed["files"]) == {
        "actor/model_world_size_1_rank_0.pt", "data.pt", STATE, "experience", "tasks", "recipe",
    }  # fmt: skip


OWN, NAMED, BEGINNING = "checkpoints/global_step_4", "elsewhere/checkpoints/global_step_7", Pool.beginning


@pytest.mark.parametrize(
    ("mode", "from_there", "pool_from", "validates_first"),
    [
        ({"resume_mode": "auto"}, OWN, OWN, False),
        ({"resume_mode": "resume_path"}, NAMED, None, False),
        ({"resume_mode": "disable"}, None, BEGINNING, True),
        ({"resume_mode": "disable", "val_only": True, "val_before_train": False}, None, None, True),
    ],
    ids=["auto", "named", "starts over", "validates as it is"],
)
def test_each_way_to_begin_restores_its_own_folder(
    tmp_path, pool, checkpoints, mode, from_there, pool_from, validates_first
):
    """The pool of a run is not set back for a checkpoint of another one, which does not know it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(pool, elsewhere)
    for folder, step in ((tmp_path, 4), (elsewhere, 7)):
        saved = trainer_in(folder, step)
        saved._failures.in_a_row = step
        save(saved)
    if pool_from is None:
        pool.unlink()
    named = {"resume_from_path": str(tmp_path / NAMED)} if from_there == NAMED else {}
    trainer = trainer_in(tmp_path, 0, **mode, **named)
    trainer._load_checkpoint()
    step = 0 if from_there is None else int(from_there.rpartition("_")[2])
    assert (trainer.global_steps, trainer._failures.in_a_row) == (step, step)
    assert trainer.actor_rollout_wg.read == (None if from_there is None else tmp_path / from_there)
    for part in trainer.parts.parts[:2]:
        assert part.restored == ([] if from_there is None else [tmp_path / from_there]), part.name
    expected = [] if pool_from is None else [pool_from if pool_from is BEGINNING else tmp_path / pool_from]
    assert trainer._experience.restored == expected
    assert trainer.config.trainer.val_before_train is validates_first

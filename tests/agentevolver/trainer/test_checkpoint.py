"""A checkpoint holds the trainer's own state, and knows which pool of experience it goes with."""

import errno
import random
import sqlite3
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ray.exceptions import RayTaskError

from agentevolver.errors import TrainingFailed
from agentevolver.sections import WatchdogSettings
from agentevolver.trainer.checkpoint import MARKER, STATE, mend_marker, restore_state, save_state, saving
from agentevolver.trainer.rollouts import FailureGuard
from agentevolver.watchdog import Watchdog
from experience_manager.store import Store, revision_of


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


def test_a_checkpoint_of_an_earlier_release_changes_nothing(folder):
    folder.mkdir(parents=True)
    random.seed(5)
    expected = random.Random(5).random()
    assert restore_state(folder, pool=None) == 0
    assert random.random() == expected


def test_the_pool_may_have_grown_since_and_may_not_be_older_or_gone(folder, pool):
    save_state(folder, failed_in_a_row=0, pool=pool)
    assert restore_state(folder, pool=pool) == 0
    raise_revision(pool)
    assert restore_state(folder, pool=pool) == 0
    with sqlite3.connect(pool) as db:
        db.execute("UPDATE meta SET value = 2 WHERE key = 'revision'")
    with pytest.raises(TrainingFailed, match=r"is older \(change 2, the checkpoint knows 3\): put the file back"):
        restore_state(folder, pool=pool)
    pool.unlink()
    with pytest.raises(TrainingFailed, match="is gone: put the file back"):
        restore_state(folder, pool=pool)
    assert restore_state(folder, pool=None) == 0, "a run elsewhere that only takes the weights"


def test_a_pool_is_read_while_another_process_has_it_open(pool):
    with Store(pool) as store:
        assert store.stamp is None
        assert revision_of(pool) == 3
    assert revision_of(pool.with_name("other.sqlite")) is None


@pytest.mark.parametrize("torn", ["", "1\x00", "abc"])
def test_a_marker_that_was_torn_names_the_last_checkpoint_that_is_whole(tmp_path, torn):
    for step in (2, 4, 10):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
        if step < 10:
            (tmp_path / f"global_step_{step}" / "data.pt").touch()
    assert mend_marker(tmp_path) is None, "none was written yet"
    (tmp_path / MARKER).write_text(torn)
    assert mend_marker(tmp_path) == 4
    assert (tmp_path / MARKER).read_text() == "4" and mend_marker(tmp_path) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), r"\[Errno 28\] No space left on device"),
        (RuntimeError("torch says much\n  unexpected pos 64 vs 0\n"), "unexpected pos 64 vs 0"),
        (RayTaskError("save", "a traceback\nof many lines", OSError(errno.EIO, "Input/output error")), r"\[Errno 5\] Input/output error"),
    ],
)
def test_what_keeps_a_checkpoint_from_being_written_is_one_line(tmp_path, error, reason):
    folder = tmp_path / "not_even_made" / "global_step_4"
    message = rf"global_step_4 could not be written \({reason}\), \d+ MiB are free there: make room"
    with pytest.raises(TrainingFailed, match=message) as caught, saving(folder):
        raise error
    assert "\n" not in str(caught.value)


def test_a_torn_marker_without_a_whole_checkpoint_is_no_marker(tmp_path):
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)
    (tmp_path / MARKER).write_text("")
    assert mend_marker(tmp_path) is None and not (tmp_path / MARKER).exists()


def trainer_in(folder, step):
    """A trainer with nothing but what its checkpoints are made of."""
    from agentevolver.trainer.evolver import EvolverTrainer  # seconds of CPU, which the other tests do not need

    trainer = EvolverTrainer.__new__(EvolverTrainer)
    options = {"default_local_dir": str(folder / "checkpoints"), "resume_mode": "auto", "val_before_train": True}
    trainer.config = SimpleNamespace(trainer=SimpleNamespace(**options, get=options.get))
    trainer.settings = SimpleNamespace(exp_manager=SimpleNamespace(enabled=True, backend="embedded", store=None), experiment_dir=folder)
    trainer.directory, trainer.global_steps = folder, step
    trainer._failures = FailureGuard(0.5, 3)
    trainer._watchdog = Watchdog(WatchdogSettings(enable=False, floor_s=1, factor=1))
    return trainer


def test_the_trainer_saves_its_state_before_verl_says_that_the_checkpoint_is_there_and_goes_on_with_it(tmp_path, pool, monkeypatch):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    def save(self):
        folder = tmp_path / "checkpoints" / f"global_step_{self.global_steps}"
        assert (folder / STATE).exists()
        (folder / "actor").mkdir()
        (folder / "data.pt").touch()
        (tmp_path / "checkpoints" / MARKER).write_text("")  # and killed there

    def load(self):
        self.global_steps = int((tmp_path / "checkpoints" / MARKER).read_text())

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", save)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", load)
    first = trainer_in(tmp_path, 4)
    first._failures.in_a_row = 2
    first._save_checkpoint()
    expected = draws()
    second = trainer_in(tmp_path, 0)
    second._load_checkpoint()
    assert (second.global_steps, second._failures.in_a_row, second.config.trainer.val_before_train) == (4, 2, False)
    assert draws() == expected
    pool.unlink()
    with pytest.raises(TrainingFailed, match="is gone"):
        trainer_in(tmp_path, 0)._load_checkpoint()

"""A disk that fills up while a checkpoint is written: one line says so, and with room again the run goes on from the
last whole one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runs import Launched, launch

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(900)]

# One checkpoint of the seed policy with its optimiser takes 11 MB.
ROOM, MORE_ROOM = "16m", "200m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(path)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"nothing may be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def saved_step(run: Launched) -> int:
    return int((run.directory.parents[1] / "disk" / "latest_checkpointed_iteration.txt").read_text())


def test_a_run_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    wanted = (
        f"trainer.default_local_dir={small_disk}",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]",
        "trainer.max_actor_ckpt_to_keep=2",
        "trainer.save_freq=2",
        "trainer.total_training_steps=6",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
    )
    full = launch(tmp_path, "full", *wanted)
    try:
        assert full.wait() == 1
        assert "global_step_4 could not be written (" in full.output and "free some space" in full.output, full.output
        assert "Traceback" not in full.output and full.processes() == set()
        assert saved_step(full) == 2
        subprocess.run(["mount", "-o", f"remount,size={MORE_ROOM}", str(small_disk)], check=True)
        again = launch(tmp_path, "full", *wanted)
        try:
            assert again.wait() == 0, again.output
            assert again.steps_done() == [3, 4, 5, 6] and saved_step(again) == 6
        finally:
            again.end()
    finally:
        full.end()

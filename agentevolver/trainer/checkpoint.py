"""What a checkpoint holds beside verl's part: the trainer's own state, and how far the pool of experience was.

verl's part is the policy, its optimiser, scheduler and RNG (`actor/`) and the loader's state (`data.pt`), which for mixed tasks is the
epoch's draw, the place in it, the mixture and the curriculum. The pool is no copy: it lies in its own file, where every insert is on disk
when it is acknowledged. A checkpoint knows its revision, so that an older file in its place is noticed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.exceptions import RayError

from agentevolver.errors import TrainingFailed, last_line
from agentevolver.settings import Settings
from agentevolver.trainer.shards import MARKER
from agentevolver.utils.files import free_bytes, whole

STATE = "trainer.pt"


def pool_of(settings: Settings) -> Path | None:
    """Return the file of the run's own pool of experience, None if it has none."""
    section = settings.exp_manager
    if not section.enabled or section.backend != "embedded":
        return None
    return section.store or settings.experiment_dir / "experience.sqlite"


def save_state(folder: Path, *, failed_in_a_row: int, pool: Path | None) -> None:
    """Write the trainer's state into a checkpoint's folder, whole or not at all; before verl says that the checkpoint is there."""
    from experience_manager.store import revision_of

    state = {
        "failed_in_a_row": failed_in_a_row,
        "pool_revision": None if pool is None else revision_of(pool),
        "rng": {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()},
    }
    with whole(folder / STATE) as draft:
        torch.save(state, draft)


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Say in one line what kept a checkpoint from being written, and what to do.

    Raises:
        TrainingFailed: in the place of what the file system, torch or a worker of verl's raised.
    """
    try:
        yield
    except (OSError, RuntimeError, RayError) as error:
        reason = last_line(getattr(error, "cause", None) or error)
        raise TrainingFailed(
            f"{folder} could not be written ({reason}), {free_bytes(folder) / 2**20:.0f} MiB are free there: make room, then run the same "
            "command again, and it goes on from the last checkpoint that is whole"
        ) from error


def restore_state(folder: Path, *, pool: Path | None) -> int:
    """Set the random generators as they were, check the pool; returns how many steps in a row had failed.

    Args:
        folder: the checkpoint. One without a state (of an earlier release) changes nothing.
        pool: the file that the run goes on with; None: it is not compared.

    Raises:
        TrainingFailed: the pool's file is older than the checkpoint.
    """
    from experience_manager.store import revision_of

    if not (folder / STATE).exists():
        return 0
    state: dict[str, Any] = torch.load(folder / STATE, weights_only=False)
    revision, known = None if pool is None else revision_of(pool), state["pool_revision"]
    if pool is not None and known is not None and (revision is None or revision < known):
        found = "is gone" if revision is None else f"is older (change {revision}, the checkpoint knows {known})"
        raise TrainingFailed(
            f"the experience pool {pool} {found}: put the file back that belongs to {folder}, or give this run a name of its own with "
            "trainer.experiment_name=NAME"
        )
    random.setstate(state["rng"]["python"])
    np.random.set_state(state["rng"]["numpy"])
    torch.set_rng_state(state["rng"]["torch"])
    return int(state["failed_in_a_row"])


def mend_marker(checkpoints: Path) -> int | None:
    """Write verl's file that names the last checkpoint anew where a kill or a full disk has torn it.

    Returns the step that it now names; None if the file was sound, is not there, or no checkpoint is whole. verl writes it in place, after
    everything else of a checkpoint.
    """
    marker = checkpoints / MARKER
    if not marker.exists() or marker.read_text(encoding="utf-8").strip().isdecimal():
        return None
    steps = [
        int(path.parent.name.rpartition("_")[2]) for path in checkpoints.glob("global_step_*/data.pt") if (path.parent / "actor").is_dir()
    ]
    if not steps:
        marker.unlink()
        return None
    with whole(marker) as draft:
        draft.write_text(str(max(steps)), encoding="utf-8")
    return max(steps)

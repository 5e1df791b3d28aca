"""The part of a checkpoint that verl does not write: the trainer's state and the revision of the experience pool."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from ray.exceptions import RayError

from agentevolver.config.schema import Settings
from agentevolver.trainer.checkpoints import STATE, begin, mark, retire, seal, set_aside, start_of, unmark
from agentevolver.utils.errors import TrainingFailed, last_line
from agentevolver.utils.files import free_bytes, whole

logger = logging.getLogger(__name__)

# verl's keys that limit the number of checkpoints.
LIMITS = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep", "remove_previous_ckpt_in_save")


def pool_of(settings: Settings) -> Path | None:
    """Return the path of the run's embedded experience pool, or None if there is none."""
    section = settings.exp_manager
    if not section.enabled or section.backend != "embedded":
        return None
    return section.store or settings.experiment_dir / "experience.sqlite"


def save_state(folder: Path, *, failed_in_a_row: int, pool: Path | None) -> None:
    """Write the trainer's state into a checkpoint atomically."""
    from experience_manager.database import revision_of

    # The pool is a file of its own. Its revision in the checkpoint reveals an older file in its place.
    state = {
        "failed_in_a_row": failed_in_a_row,
        "pool_revision": None if pool is None else revision_of(pool),
        "rng": {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()},
    }
    with whole(folder / STATE) as draft:
        torch.save(state, draft)


def prepare_start(trainer: Mapping[str, Any], experiment: Path) -> None:
    """Set verl's marker to the checkpoint to resume from, or remove it to start over. Raises TrainingFailed."""
    start, checkpoints = start_of(trainer, experiment), Path(trainer["default_local_dir"])
    if start.warning is not None:
        logger.warning("%s", start.warning)
    if trainer["resume_mode"] == "auto":
        if start.checkpoint is None:
            unmark(checkpoints)
        elif not trainer.get("val_only"):
            # It becomes the newest checkpoint, even if its run was killed before sealing it, or if later checkpoints
            # exist.
            seal(start.checkpoint)
        elif start.warning is not None:
            mark(start.checkpoint)
    elif (
        trainer["resume_mode"] == "disable"
        and not trainer.get("val_only")
        and (aside := set_aside(checkpoints)) is not None
    ):
        logger.warning("starting over: the earlier checkpoints are in %s", aside)


def kept(trainer: Mapping[str, Any]) -> int | None:
    """Return the number of checkpoints to keep, or None to keep all."""
    number: int | None = 1 if trainer.get("remove_previous_ckpt_in_save") else trainer.get("max_actor_ckpt_to_keep")
    return number


@contextmanager
def keeping_all(trainer: DictConfig) -> Iterator[None]:
    """Stop verl from removing checkpoints inside the block."""
    # If it keeps one checkpoint, verl removes the old one before the new one is complete: a crash would leave none.
    limits = {key: trainer[key] for key in LIMITS if key in trainer}
    try:
        for key in limits:
            trainer[key] = None
        yield
    finally:
        trainer.update(limits)


def make_room(folder: Path, keep: int | None) -> None:
    """Remove an earlier checkpoint of this name and all but the newest `keep` - 1 others; at least one stays."""
    retire(folder.parent, keep - 1 if keep else None)
    begin(folder)


def finish(folder: Path, keep: int | None) -> None:
    """Seal a checkpoint, then remove all but the newest `keep`."""
    seal(folder)
    retire(folder.parent, keep)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors while a checkpoint is written into TrainingFailed, with one line on what to do."""
    try:
        yield
    except (OSError, RuntimeError, RayError) as error:
        reason = last_line(getattr(error, "cause", None) or error)
        raise TrainingFailed(
            f"{folder} could not be written ({reason}), {free_bytes(folder) / 2**20:.0f} MiB are free there: free "
            "some space, then run the same command, which resumes from the last complete checkpoint"
        ) from error


def restore_state(folder: Path, *, pool: Path | None) -> int:
    """Restore the random generators and return the number of consecutive failed steps, 0 without a state file.

    Raises TrainingFailed if the state is unreadable or the pool is older than the checkpoint.
    """
    from experience_manager.database import revision_of

    if not (folder / STATE).exists():
        return 0
    try:
        state: dict[str, Any] = torch.load(folder / STATE, weights_only=False)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        raise TrainingFailed(
            f"{folder / STATE} cannot be read ({last_line(error)}): resume from another checkpoint with "
            "trainer.resume_from_path, or remove this one to resume from the one before"
        ) from error
    revision, known = None if pool is None else revision_of(pool), state["pool_revision"]
    if pool is not None and known is not None and (revision is None or revision < known):
        found = "is gone" if revision is None else f"is older (change {revision}, the checkpoint knows {known})"
        raise TrainingFailed(
            f"the experience pool {pool} {found}: restore the file that belongs to {folder}, or start a new experiment "
            "with trainer.experiment_name=NAME"
        )
    random.setstate(state["rng"]["python"])
    np.random.set_state(state["rng"]["numpy"])
    torch.set_rng_state(state["rng"]["torch"])
    return int(state["failed_in_a_row"])

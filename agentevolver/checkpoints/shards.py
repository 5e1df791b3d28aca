"""The files of a checkpoint that hold the policy: one of each kind a rank, named by the number of ranks that wrote
them.

A folder may hold the files of several numbers of ranks: a step that was repeated on another number leaves the old ones
where they were. verl's `fsdp_config.json`, written after them, says whose are the newest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agentevolver.errors import TrainingFailed

LAYOUT = "fsdp_config.json"
MODEL, OPTIMIZER, EXTRA = "model", "optim", "extra_state"
# What a checkpoint's contents are called in `checkpoint.save_contents` and `.load_contents`, and in file names.
KINDS = {"model": MODEL, "optimizer": OPTIMIZER, "extra": EXTRA}


@dataclass(frozen=True)
class Layout:
    """How many ranks wrote a checkpoint, and with which version of FSDP."""

    ranks: int
    fsdp: int


def layout_of(actor: Path) -> Layout | None:
    """Return the layout of a checkpoint's `actor` folder, None if it does not say.

    Raises:
        TrainingFailed: the file that says it cannot be read.
    """
    path = actor / LAYOUT
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Layout(int(found["world_size"]), int(found["FSDP_version"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingFailed(
            f"{path} cannot be read ({error}): resume from another checkpoint with trainer.resume_from_path"
        ) from error


def shard(actor: Path, kind: str, ranks: int, rank: int) -> Path:
    """Return the file of a rank, as verl names it."""
    return actor / f"{kind}_world_size_{ranks}_rank_{rank}.pt"


def check_ranks(actor: Path, ranks: int, kinds: tuple[str, ...]) -> None:
    """Refuse a checkpoint that this number of ranks cannot go on from; opens no shard.

    Args:
        actor: the checkpoint's `actor` folder. One that does not say who wrote it is left to verl.
        ranks: how many are to load it. As many as wrote it read a file of their own each, which may lie on their own
            node.
        kinds: what they load, of `KINDS`.

    Raises:
        TrainingFailed: files are missing, or were written by FSDP1 and another number of ranks.
    """
    layout = layout_of(actor)
    if layout is None or layout.ranks == ranks:
        return
    if layout.fsdp != 2:
        raise TrainingFailed(
            f"{actor} was written by {layout.ranks} ranks of FSDP{layout.fsdp} and can only be resumed on as many, "
            f"not on {ranks}: give "
            f"the run {layout.ranks} GPUs again, or start from its weights (python -m verl.model_merger merge "
            "--backend fsdp)"
        )
    names = [KINDS[kind] for kind in kinds if kind in KINDS]
    missing = [
        path
        for name in names
        for rank in range(layout.ranks)
        if not (path := shard(actor, name, layout.ranks, rank)).exists()
    ]
    if missing:
        raise TrainingFailed(
            f"{missing[0]} is missing ({len(missing)} of {len(names) * layout.ranks} files of {layout.ranks} ranks): "
            "every rank reads the "
            "checkpoint, so put all of its files into one folder that all nodes see, or resume from another one "
            "(trainer.resume_from_path)"
        )

"""Which checkpoint a run goes on from: the marked one if it is whole, else the newest that is; and how many are kept.

A checkpoint is sealed when all of it is on the disk: a manifest with the size of every file is written last. What lacks
the manifest (a run that was killed before, a checkpoint of an earlier release) is judged by what its files look like.
Nothing here opens a tensor or imports torch, so the launcher asks the same questions before it starts anything.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from agentevolver.checkpoints.shards import LAYOUT
from agentevolver.errors import TrainingFailed
from agentevolver.monitor.log import last_step
from agentevolver.utils.files import remove_tree, sync_tree, write_json, write_text

# verl's file that names the last checkpoint.
MARKER = "latest_checkpointed_iteration.txt"
MANIFEST = "whole.json"
# The trainer's own state, and verl's of the loader.
STATE, DATA, ACTOR = "trainer.pt", "data.pt", "actor"
_PREFIX = "global_step_"


@dataclass(frozen=True)
class Start:
    """Where a run begins: at a checkpoint, or over (None); and what a person should know about that."""

    checkpoint: Path | None
    warning: str | None = None


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A checkpoint that is whole. They are ordered as they were written, whatever their steps: `number` counts the
    sealed ones."""

    number: int
    step: int
    folder: Path


def start_of(trainer: Mapping[str, Any], experiment: Path) -> Start:
    """Return where a run begins by its section `trainer`.

    Args:
        trainer: with verl's keys.
        experiment: the experiment's folder, where its metrics are.

    Raises:
        TrainingFailed: `resume_from_path` names no checkpoint; or steps were trained here and none of them can be gone
            on from.
    """
    if trainer["resume_mode"] == "resume_path":
        named = Path(str(trainer["resume_from_path"]))
        if not (named / ACTOR).is_dir():
            raise TrainingFailed(
                f"trainer.resume_from_path={named} is no checkpoint: give a folder global_step_N that holds actor/"
            )
        return Start(named)
    if trainer["resume_mode"] != "auto":
        return Start(None)
    checkpoints = Path(trainer["default_local_dir"])
    marked = _marked(checkpoints)
    problem = f"{MARKER} is lost or torn" if marked is None else _named(marked, problem_with(marked))
    if marked is not None and problem is None:
        return Start(marked)
    found = whole_checkpoints(checkpoints)
    if found:
        return Start(
            found[-1].folder,
            f"{checkpoints}: {problem}; going on from {found[-1].folder.name}, the newest checkpoint that is whole",
        )
    trained = last_step(experiment) or 0
    torn = sorted((path for path in _folders(checkpoints)), key=_step_of)
    if marked is None and torn:
        problem = _named(torn[-1], problem_with(torn[-1]))
    if trained > 0:
        raise TrainingFailed(
            f"{experiment} holds the metrics of {trained} steps and no whole checkpoint"
            + (f" ({problem})" if torn or marked is not None else "")
            + ": give this run a name of its own with trainer.experiment_name=NAME, or start over in this folder with "
            "trainer.resume_mode=disable"
        )
    return Start(
        None,
        f"{checkpoints}: {problem}; no step was finished, so the run starts over"
        if torn or marked is not None
        else None,
    )


def whole_checkpoints(checkpoints: Path) -> list[Checkpoint]:
    """Return the checkpoints of a folder that are whole, the newest last."""
    return sorted(
        Checkpoint(int((_manifest(folder) or {}).get("number", 0)), _step_of(folder), folder)
        for folder in _folders(checkpoints)
        if problem_with(folder) is None
    )


def problem_with(folder: Path) -> str | None:
    """Return what keeps a checkpoint from being whole, None if nothing does."""
    if not folder.is_dir():
        return "is missing"
    manifest = _manifest(folder)
    if manifest is not None:
        return next(
            (found for name, size in manifest["files"].items() if (found := _differs(folder / name, size))), None
        )
    shards = sorted((folder / ACTOR).glob("*.pt"))
    if not shards:
        return f"has no policy in {ACTOR}/"
    try:
        if (layout := folder / ACTOR / LAYOUT).exists():
            json.loads(layout.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"has a torn {ACTOR}/{LAYOUT}"
    return next((found for path in (folder / STATE, folder / DATA, *shards) if (found := _torn(path, folder))), None)


def begin(folder: Path) -> None:
    """Make room for a checkpoint: what an earlier run left under its name is removed, so that the two are never
    mixed."""
    remove_tree(folder)


def seal(folder: Path) -> None:
    """Say that all of a checkpoint is there: its files are synced, then the manifest is written, then verl's marker
    names it."""
    sync_tree(folder)
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    newest = whole_checkpoints(folder.parent)
    write_json(folder / MANIFEST, {"number": 1 + max((found.number for found in newest), default=0), "files": files})
    mark(folder)


def mark(checkpoint: Path) -> None:
    """Make verl's marker name a checkpoint, durably."""
    write_text(checkpoint.parent / MARKER, str(_step_of(checkpoint)))


def unmark(checkpoints: Path) -> None:
    """Remove the marker: the run starts over."""
    (checkpoints / MARKER).unlink(missing_ok=True)


def set_aside(checkpoints: Path) -> Path | None:
    """Move the checkpoints of a run that starts over to `superseded-<n>/`, so that nothing goes on from them; None if
    there are none."""
    folders = _folders(checkpoints)
    if not folders:
        return None
    # Inside: the folder itself may be a disk of its own.
    targets = (checkpoints / f"superseded-{number}" for number in count(1))
    target = next(path for path in targets if not path.exists())
    target.mkdir()
    unmark(checkpoints)
    for folder in folders:
        folder.rename(target / folder.name)
    return target


def retire(checkpoints: Path, keep: int | None) -> None:
    """Remove all checkpoints but the newest, whichever process wrote them; one that is not whole counts after those
    that are.

    Args:
        checkpoints: the folder they are in.
        keep: how many are kept; None or 0: all.
    """
    found = [checkpoint.folder for checkpoint in reversed(whole_checkpoints(checkpoints))]
    others = sorted((folder for folder in _folders(checkpoints) if folder not in found), key=_step_of, reverse=True)
    for folder in [*found, *others][keep:] if keep else ():
        remove_tree(folder)


def _folders(checkpoints: Path) -> list[Path]:
    return [
        path
        for path in checkpoints.glob(f"{_PREFIX}*")
        if path.name.removeprefix(_PREFIX).isdecimal() and path.is_dir()
    ]


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix(_PREFIX))


def _marked(checkpoints: Path) -> Path | None:
    try:
        step = (checkpoints / MARKER).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    return checkpoints / f"{_PREFIX}{step}" if step.isdecimal() and step.isascii() else None


def _named(folder: Path, problem: str | None) -> str | None:
    return None if problem is None else f"{folder.name} {problem}"


def _manifest(folder: Path) -> dict[str, Any] | None:
    """Return what was written when a checkpoint was sealed, None if there is nothing to read."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {
            "number": int(found["number"]),
            "files": {str(name): int(size) for name, size in found["files"].items()},
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _differs(path: Path, size: int) -> str | None:
    name = f"{path.parent.name}/{path.name}" if path.parent.name == ACTOR else path.name
    try:
        found = path.stat().st_size
    except OSError:
        return f"lacks {name}"
    return None if found == size else f"has a torn {name} ({found} bytes of {size})"


def _torn(path: Path, folder: Path) -> str | None:
    """Say whether a file of torch's is missing or cut short: the table of what is in it stands at its end."""
    name = path.relative_to(folder).as_posix()
    try:
        with zipfile.ZipFile(path):
            return None
    except FileNotFoundError:
        return f"lacks {name}"
    except (OSError, zipfile.BadZipFile):
        return f"has a torn {name}"

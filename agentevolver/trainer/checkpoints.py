"""Checkpoints on disk, without torch: which are whole, which one a run resumes from, how ranks share it.

A checkpoint is sealed by a manifest with the size of every file, which is written last. Without a manifest (the run was
killed, or the release is older) its files are examined. A run resumes from the marked checkpoint if it is whole, else
from the newest that is. Nothing here opens a tensor or imports torch, so the launcher can ask before it starts
anything.

The policy's files are named by kind, rank and number of ranks. A folder may hold those of several numbers of ranks, if
a step was repeated on another number; verl's `fsdp_config.json`, written after them, says whose are the newest.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from agentevolver.trainer.monitor.log import last_trained_step
from agentevolver.utils import recipes
from agentevolver.utils.errors import TrainingFailed, last_line
from agentevolver.utils.files import remove_tree, sync_tree, write_json, write_text

# verl's file that names the last checkpoint.
MARKER = "latest_checkpointed_iteration.txt"
MANIFEST = "whole.json"
# The trainer's own state, and verl's of the loader.
STATE, DATA, ACTOR = "trainer.pt", "data.pt", "actor"
LAYOUT = "fsdp_config.json"
MODEL, OPTIMIZER, EXTRA = "model", "optim", "extra_state"
# What a checkpoint's contents are called in `checkpoint.save_contents` and `.load_contents`, and in file names.
KINDS = {"model": MODEL, "optimizer": OPTIMIZER, "extra": EXTRA}
# Of the manifest: what a release writes, and the newest that it reads. A manifest without one is of the first.
SCHEMA = 1
_PREFIX = "global_step_"
# Of a model's configuration (`config.json`), what says nothing of its tensors.
INCIDENTAL = frozenset(
    {"_name_or_path", "architectures", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset"}
    | {"dtype", "torch_dtype", "transformers_version", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id"}
)


def model_difference(model: str, other: str, *, trust_remote_code: bool = False) -> str | None:
    """Return how the architecture of `other` differs from that of `model`, or None if they are equal.

    Args:
        model: a Hugging Face folder, or a name on the hub.
        other: the same.
        trust_remote_code: whether code that comes with a model is run.

    Raises ValueError for one whose config.json cannot be read.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        one, two = (
            AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code).to_dict() for path in (model, other)
        )
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise ValueError(f"no model's config.json: {last_line(error)}") from error
    names = [name for name in sorted({*one, *two} - INCIDENTAL) if one.get(name) != two.get(name)]
    if not names:
        return None
    more = f" (also different: {', '.join(names[1:])})" if names[1:] else ""
    return f"{names[0]} is {two.get(names[0])}, not {one.get(names[0])}{more}"


@dataclass(frozen=True)
class Start:
    """Where a run starts: a checkpoint, or None to start over; and what a person should know about that."""

    checkpoint: Path | None
    warning: str | None = None


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A whole checkpoint. They are ordered as they were written (`number`), whatever their steps."""

    number: int
    step: int
    folder: Path


def start_of(trainer: Mapping[str, Any], experiment: Path) -> Start:
    """Return where a run starts, by its section `trainer` and its `experiment` folder.

    Raises TrainingFailed if `resume_from_path` names no checkpoint, if steps were trained here and no checkpoint is
    whole, or if a newer release wrote them.
    """
    checkpoints = Path(trainer["default_local_dir"])
    for folder in _folders(checkpoints) if trainer["resume_mode"] in ("auto", "resume_path") else ():
        _manifest(folder)
    if trainer["resume_mode"] == "resume_path":
        named = Path(str(trainer["resume_from_path"]))
        if not (named / ACTOR).is_dir():
            raise TrainingFailed(
                f"trainer.resume_from_path={named} is no checkpoint: give a folder global_step_N that holds actor/"
            )
        _manifest(named)
        return Start(named)
    if trainer["resume_mode"] != "auto":
        return Start(None)
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
    trained = last_trained_step(experiment)
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


def only_starts_over(experiment: Path) -> bool:
    """Whether steps were trained in an experiment and no checkpoint is whole: `start_of` refuses unless told to start
    over.

    The main job of a recipe resumes by a file of its own.
    """
    if not last_trained_step(experiment) or recipes.in_progress(experiment):
        return False
    return not whole_checkpoints(experiment / "checkpoints")


def whole_checkpoints(checkpoints: Path) -> list[Checkpoint]:
    """Return the whole checkpoints of a folder, the newest last."""
    return sorted(
        Checkpoint(int((_manifest(folder) or {}).get("number", 0)), _step_of(folder), folder)
        for folder in _folders(checkpoints)
        if problem_with(folder) is None
    )


def problem_with(folder: Path) -> str | None:
    """Return why a checkpoint is not whole, or None."""
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
    """Remove what an earlier run left under a checkpoint's name, so that the two never mix."""
    remove_tree(folder)


def seal(folder: Path) -> None:
    """Complete a checkpoint: sync its files, write the manifest, set verl's marker."""
    sync_tree(folder)
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    newest = whole_checkpoints(folder.parent)
    number = 1 + max((found.number for found in newest), default=0)
    write_json(folder / MANIFEST, {"schema": SCHEMA, "number": number, "files": files})
    mark(folder)


def mark(checkpoint: Path) -> None:
    """Set verl's marker to a checkpoint, durably."""
    write_text(checkpoint.parent / MARKER, str(_step_of(checkpoint)))


def unmark(checkpoints: Path) -> None:
    """Remove the marker: the run starts over."""
    (checkpoints / MARKER).unlink(missing_ok=True)


def set_aside(checkpoints: Path) -> Path | None:
    """Move the checkpoints of a run that starts over to `superseded-<n>/` and return that, None if there are none."""
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
    """Remove all but the newest `keep` checkpoints (None or 0: none are removed), whichever process wrote them.
    Whole ones count as newer than others."""
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
    """Return a checkpoint's manifest, or None. Raises TrainingFailed if a newer release wrote it."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if (schema := int(found.get("schema", 1))) > SCHEMA:
            raise TrainingFailed(
                f"{folder} was written by a newer release (schema {schema}, this one reads {SCHEMA}): go on with that "
                "release, or give this run a name of its own with trainer.experiment_name=NAME"
            )
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
    """Return whether a file of torch's is missing or truncated: its table of contents stands at its end."""
    name = path.relative_to(folder).as_posix()
    try:
        with zipfile.ZipFile(path):
            return None
    except FileNotFoundError:
        return f"lacks {name}"
    except (OSError, zipfile.BadZipFile):
        return f"has a torn {name}"


@dataclass(frozen=True)
class Layout:
    """Layout of a checkpoint: its number of ranks, and the version of FSDP."""

    ranks: int
    fsdp: int


def layout_of(actor: Path) -> Layout | None:
    """Return the layout of a checkpoint's `actor` folder, None if it does not say. Raises TrainingFailed."""
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
    """Refuse a checkpoint that `ranks` ranks cannot resume from; opens no shard. Raises TrainingFailed.

    As many ranks as wrote it read a file each, possibly on their own nodes. A folder that does not say who wrote it is
    left to verl. FSDP1's files need their own number of ranks. `kinds`: what is loaded, of `KINDS`.
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

"""Checkpoints on disk: which are whole, and where a run resumes. No torch, because the launcher calls this.

A manifest with all file sizes is written last. Without one (killed run, older release) the files are examined.
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
# The trainer's state, verl's state of the loader, and verl's folder of the policy.
STATE, DATA, ACTOR = "trainer.pt", "data.pt", "actor"
LAYOUT = "fsdp_config.json"
MODEL, OPTIMIZER, EXTRA = "model", "optim", "extra_state"
# Contents of a checkpoint: the name in `checkpoint.save_contents` and `.load_contents` -> the name in file names.
KINDS = {"model": MODEL, "optimizer": OPTIMIZER, "extra": EXTRA}
# Version of the manifest that this release writes, and the newest it reads. A manifest without one has version 1.
SCHEMA = 1
_PREFIX = "global_step_"
# Keys of a model's `config.json` that do not change its tensors.
INCIDENTAL = frozenset(
    {"_name_or_path", "architectures", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset"}
    | {"dtype", "torch_dtype", "transformers_version", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id"}
)


def model_difference(model: str, other: str, *, trust_remote_code: bool = False) -> str | None:
    """Return the first difference between the architectures of two models, or None.

    Models are Hugging Face folders or hub names. Raises ValueError if a config.json cannot be read.
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
    """Where a run starts: a checkpoint, or None to start over, and a warning to print."""

    checkpoint: Path | None
    warning: str | None = None


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A whole checkpoint. `number` counts seals, so the order is the order of writing, not of steps."""

    number: int
    step: int
    folder: Path


def start_of(trainer: Mapping[str, Any], experiment: Path) -> Start:
    """Return where a run starts. `trainer` is verl's section, `experiment` the run's folder.

    Raises TrainingFailed if `resume_from_path` is no checkpoint, if steps were trained but no checkpoint is whole, or
    if a newer release wrote them.
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
    """Whether there are trained steps but no whole checkpoint, so that `start_of` fails unless the run starts over."""
    # The main job of a recipe resumes from a file of its own.
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
    """Return why a checkpoint is not whole, or None if it is."""
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
    """Remove an earlier run's files of the same checkpoint, so that the two never mix."""
    remove_tree(folder)


def seal(folder: Path) -> None:
    """Complete a checkpoint: sync its files to disk, write the manifest, set verl's marker."""
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
    write_text(checkpoint.parent / MARKER, str(_step_of(checkpoint)))


def unmark(checkpoints: Path) -> None:
    (checkpoints / MARKER).unlink(missing_ok=True)


def set_aside(checkpoints: Path) -> Path | None:
    """Move all checkpoints to `superseded-<n>/` and return that folder, or None if there are no checkpoints."""
    folders = _folders(checkpoints)
    if not folders:
        return None
    # Inside the folder, which may be a mount point and cannot be renamed.
    targets = (checkpoints / f"superseded-{number}" for number in count(1))
    target = next(path for path in targets if not path.exists())
    target.mkdir()
    unmark(checkpoints)
    for folder in folders:
        folder.rename(target / folder.name)
    return target


def retire(checkpoints: Path, keep: int | None) -> None:
    """Remove all but the newest `keep` checkpoints; whole ones count as newer than others. None or 0 removes none."""
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
    """Return a checkpoint's manifest, or None if it is missing or torn. Raises TrainingFailed if a newer release wrote
    it."""
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
    name = path.relative_to(folder).as_posix()
    try:
        # torch.save writes a zip file, whose table of contents is at the end: a truncated file does not open.
        with zipfile.ZipFile(path):
            return None
    except FileNotFoundError:
        return f"lacks {name}"
    except (OSError, zipfile.BadZipFile):
        return f"has a torn {name}"


@dataclass(frozen=True)
class Layout:
    ranks: int
    fsdp: int


def layout_of(actor: Path) -> Layout | None:
    """Return the layout of an `actor` folder, or None if it has no layout file. Raises TrainingFailed if it is torn."""
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
    return actor / f"{kind}_world_size_{ranks}_rank_{rank}.pt"


def check_ranks(actor: Path, ranks: int, kinds: tuple[str, ...]) -> None:
    """Raise TrainingFailed if `ranks` ranks cannot load these contents (names of `KINDS`). Opens no shard."""
    layout = layout_of(actor)
    # With an equal number of ranks each rank reads its own file, possibly on its own node. FSDP1 allows only that.
    # Without a layout file the decision is left to verl.
    if layout is None or layout.ranks == ranks:
        return
    if layout.fsdp != 2:
        raise TrainingFailed(
            f"{actor} was written by {layout.ranks} ranks of FSDP{layout.fsdp}, which cannot resume on {ranks}: "
            f"give the run {layout.ranks} GPUs, or start from its weights (python -m verl.model_merger merge "
            "--backend fsdp)"
        )
    # A folder can hold the files of several world sizes if a step was repeated. verl writes fsdp_config.json last, so
    # its world size is the current one.
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
            "every rank reads all of them, so put them into one folder that all nodes see, or resume from another "
            "checkpoint (trainer.resume_from_path)"
        )

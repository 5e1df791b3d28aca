"""Facts that are read from a model's files without loading it."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

from agentevolver.utils.errors import UsageError

# Bytes of an element of the trainer's weights, which reach the engine in fp32.
_ELEMENT = 4
# Megabytes of a bucket if the model is not on this machine yet. Shared memory that no weight fills is not allocated.
UNKNOWN = 2048
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def snapshot(model: str) -> Path | None:
    """Return the folder of a model, or its snapshot in the Hugging Face cache; None if neither exists."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def model_folder(path: str) -> Path | None:
    """Return the model's folder or its snapshot in the Hugging Face cache, or None if neither exists.

    Raises:
        UsageError: `path` is a folder that lacks a file.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (missing := missing_in(folder)) is not None:
            raise UsageError(
                f"actor_rollout_ref.model.path={path} has no {missing}; give a folder that `from_pretrained` takes"
            )
        return folder
    return snapshot(path)


def missing_in(folder: Path) -> str | None:
    """Return the name of a file that the model's folder lacks, or None if it is complete."""
    if not (folder / "config.json").is_file():
        return "config.json"
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        return "model.safetensors (or an index of its shards)"
    if found.suffix == ".json":
        shards = json.loads(found.read_text(encoding="utf-8"))["weight_map"].values()
        return next((name for name in sorted(set(shards)) if not (folder / name).is_file()), None)
    return None


def bucket_megabytes(model: str, least: int) -> int:
    """Return the size of the weight update's buckets: `least`, or more if the model's largest tensor needs it."""
    folder = snapshot(model)
    files = [] if folder is None else sorted(folder.glob("*.safetensors"))
    try:
        elements = [size for file in files for size in _sizes(file)]
    except (OSError, ValueError, KeyError, struct.error):  # loading the model reports a broken file
        elements = []
    return max(least, math.ceil(max(elements) * _ELEMENT / 2**20)) if elements else max(least, UNKNOWN)


def _sizes(file: Path) -> list[int]:
    """Return the number of elements of each tensor in a safetensors file. Its header is JSON behind 8 bytes of length.

    Raises OSError, ValueError, KeyError, struct.error.
    """
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > file.stat().st_size:
            raise ValueError(f"{file} has no header")
        header = json.loads(opened.read(length))
    return [math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"]

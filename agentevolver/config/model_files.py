"""Facts that are read from a model's files without loading it."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDERS = (
    *(f"actor_rollout_ref.model.{key}" for key in ("path", "tokenizer_path", "hf_config_path", "lora_adapter_path")),
    "trainer.weights",
)
# Bytes of an element of the trainer's weights, which reach the engine in fp32.
_ELEMENT = 4
# Megabytes of a bucket if the model is not on this machine yet. Shared memory that no weight fills is not allocated.
UNKNOWN = 2048
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model", "tiktoken.model"),
    *("sentencepiece.bpe.model", "qwen.tiktoken"),
)


def local(path: str) -> str:
    """Return a path in its one form, absolute and without links, or the text as it is if nothing is there."""
    place = os.path.expanduser(path)
    return os.path.realpath(place) if os.path.exists(place) else path


def snapshot(model: str) -> Path | None:
    """Return the folder of a model, or its snapshot in the Hugging Face cache; None if neither exists."""
    folder = Path(local(model))
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def broken_in(folder: Path, tokenizer: Path | None, *, templated: bool) -> str | None:
    """Return which file a model's or a tokenizer's folder lacks, or which one is broken; None if all are whole.

    Args:
        tokenizer: None if it is on the hub, and not on this machine yet.
        templated: the tokenizer must have a chat template.
    """
    try:
        _read(folder / "config.json")
        weights = _first(folder, WEIGHTS)
        placed = _read(weights)["weight_map"].values() if weights.suffix == ".json" else [weights.name]
        for shard in sorted(set(placed)):
            _read(folder / shard)
        if tokenizer is None:
            return None
        own, template = tokenizer / "tokenizer_config.json", tokenizer / "chat_template.jinja"
        config = _read(own) if own.exists() else {}
        if not config.get("auto_map"):  # a tokenizer's own code may read any file, and bring the template
            words = _first(tokenizer, TOKENIZERS)
            _read(words)
            if templated and not config.get("chat_template") and words.name != "tekken.json":
                if not template.is_file():
                    return f"{tokenizer} has no chat template: take a chat model, or write {template.name} there"
                _read(template)
    except (KeyError, TypeError, AttributeError) as error:
        return f"{weights} is no index of shards: {error!r}"
    except (ValueError, OSError) as error:
        return str(error)
    return None


def _first(folder: Path, names: Sequence[str]) -> Path:
    found = next((folder / name for name in names if (folder / name).exists()), None)
    if found is None:
        raise ValueError(f"{folder} has no {names[0]} (nor {', '.join(names[1:])})")
    return found


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON file, the tensors in the header of a safetensors file, or {} for another format.

    Raises ValueError, naming the file, if it is missing, truncated or a pointer of git-lfs.
    """
    if not file.is_file():
        raise ValueError(f"{file.parent} has no {file.name}")
    size = end = file.stat().st_size
    found: dict[str, Any] = {}
    with file.open("rb") as opened:
        begin = opened.read(8)
        if begin == b"version ":
            raise ValueError(f"{file} is a pointer of git-lfs: `git lfs pull` in its folder fetches the file")
        try:
            if file.suffix == ".json":
                found = {**json.loads((begin + opened.read()).decode())}
            elif file.suffix == ".safetensors":  # JSON behind eight bytes of length, then the tensors
                length = int.from_bytes(begin, "little")
                found = json.loads(opened.read(length if length < size else 0))
                found.pop("__metadata__", None)
                end = 8 + length + max((tensor["data_offsets"][1] for tensor in found.values()), default=0)
            elif not begin or (begin.startswith(b"PK") and not zipfile.is_zipfile(file)):
                end = -1
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is truncated or broken: {error}") from error
    if size != end:
        raise ValueError(f"{file} is truncated or empty: fetch it again")
    return found


def bucket_megabytes(model: str, least: int) -> int:
    """Return the size of the weight update's buckets: `least`, or more if the model's largest tensor needs it."""
    folder = snapshot(model)
    files = [] if folder is None else sorted(folder.glob("*.safetensors"))
    try:
        elements = [math.prod(tensor["shape"]) for file in files for tensor in _read(file).values()]
    except (OSError, ValueError, KeyError):  # loading the model reports a broken file
        elements = []
    return max(least, math.ceil(max(elements) * _ELEMENT / 2**20)) if elements else max(least, UNKNOWN)

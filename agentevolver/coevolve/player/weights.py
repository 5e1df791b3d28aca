"""Checkpoints that a player is asked for: Hugging Face folders,
told apart by their files and checked before they are loaded.

Weights go into an engine that runs, so they must be those of its model: the same architecture, the same tensors of the
same shapes. Only the heads of the files are read for that.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoConfig

from agentevolver.checkpoints import differing
from agentevolver.coevolve.player.client import PlayerRefused
from agentevolver.errors import last_line

_HEAD_BYTES = 100 * 1024 * 1024


def local(checkpoint: Path | str, *, fetch: bool = False) -> Path:
    """Return the folder of a checkpoint: itself, or where a model of the hub was fetched to.

    Args:
        checkpoint: a folder, or a name on the hub (`Qwen/Qwen3-4B-Base`).
        fetch: whether the hub is asked for what is not there.

    Raises PlayerRefused where there is none.
    """
    if os.path.isdir(checkpoint):
        return Path(checkpoint).resolve()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(checkpoint), local_files_only=not fetch)).resolve()
    except (OSError, ValueError) as error:
        raise PlayerRefused(f"checkpoint {checkpoint} is not there: {last_line(error)}") from error


def identify(folder: Path) -> str:
    """Return the name of what is in a folder now: another one once a file of weights is written anew.

    Raises PlayerRefused for what is no Hugging Face folder with weights in safetensors.
    """
    files = [folder / "config.json", *files_of(folder)]
    try:
        marks = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise PlayerRefused(f"checkpoint {folder} is no Hugging Face folder: {error}") from error
    return json.dumps([str(folder.resolve()), *marks])


def folder_of(name: str) -> Path:
    """Return the folder of a name that `identify` gave."""
    return Path(json.loads(name)[0])


def files_of(folder: Path) -> list[Path]:
    """Return a folder's files of weights; raises PlayerRefused where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise PlayerRefused(f"checkpoint {folder} holds no *.safetensors")
    return files


class Weights(Protocol):
    """An engine whose weights can be changed, as the player uses it."""

    @property
    def dead(self) -> bool: ...

    def check(self, name: str) -> None: ...

    async def load(self, name: str) -> None: ...


class Accepted:
    """Checkpoints that an engine takes, each looked at once."""

    def __init__(self, engine: Weights) -> None:
        self._engine = engine
        self._known: set[str] = set()

    def name(self, checkpoint: Path | str) -> str:
        """Return the name of a folder's weights; raises PlayerRefused for what the engine cannot take."""
        name = identify(local(checkpoint))
        if name not in self._known:
            self._engine.check(name)
            self._known.add(name)
        return name


class Model:
    """Shape of an engine's model: architecture, and the shape of each tensor.

    Args:
        folder: the weights that the engine was started with.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._architecture = _architecture(folder)
        self._shapes = _shapes(folder)

    def check(self, folder: Path) -> None:
        """Raise PlayerRefused, with the first difference, for weights of another model."""
        other = _architecture(folder)
        for key in differing(self._architecture, other):
            raise PlayerRefused(
                f"checkpoint {folder} is of another architecture than {self._folder}: {key} is {other.get(key)!r}, not "
                f"{self._architecture.get(key)!r}"
            )
        shapes = _shapes(folder)
        # A head that is the embedding's own tensor may be written or left out.
        tied = {"lm_head.weight"} if self._architecture.get("tie_word_embeddings") else set()
        for name in sorted((self._shapes.keys() | shapes.keys()) - tied):
            if self._shapes.get(name) != shapes.get(name):
                raise PlayerRefused(
                    f"checkpoint {folder} has other weights than {self._folder}: {name} has the shape "
                    f"{shapes.get(name)}, not {self._shapes.get(name)}"
                )


def _architecture(folder: Path) -> dict[str, Any]:
    """Return a model's configuration, with the defaults of what its file leaves out."""
    try:
        config: dict[str, Any] = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()
    except (OSError, ValueError, KeyError) as error:
        raise PlayerRefused(f"checkpoint {folder}: its config.json cannot be read: {last_line(error)}") from error
    return config


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return each tensor's shape. The head of a file is JSON behind its length,
    and the file as long as it says (https://huggingface.co/docs/safetensors)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files_of(folder):
        try:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                if length > _HEAD_BYTES:
                    raise ValueError(f"its head would have {length} bytes")
                head = json.loads(opened.read(length))
            tensors = {name: tensor for name, tensor in head.items() if name != "__metadata__"}
            end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            if file.stat().st_size != 8 + length + end:
                raise ValueError(f"it has {file.stat().st_size} bytes, and should have {8 + length + end}")
            shapes |= {name: tuple(tensor["shape"]) for name, tensor in tensors.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlayerRefused(f"checkpoint {folder}: {file.name} is torn or no safetensors: {error}") from error
    return shapes

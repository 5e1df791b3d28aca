"""Digests of weights, one line a transfer, in the file named by the environment."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch

FILE = "WEIGHT_DIGESTS"


class Digest:
    """Of named tensors, whatever their order and however they are parted."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._parts[name] = hashlib.sha256(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()

    def write(self, end: str) -> None:
        whole = hashlib.sha256(repr(sorted(self._parts.items())).encode()).hexdigest()
        with Path(f"{os.environ[FILE]}.{end}").open("a") as file:
            file.write(f"{len(self._parts)} {whole}\n")

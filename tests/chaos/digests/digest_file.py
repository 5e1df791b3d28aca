"""Digests of weights, one line a transfer, in files named by the environment; and waiting for the other run, so that
both send at once."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path

import torch

FILE, PEER = "WEIGHT_DIGESTS", "WEIGHT_DIGESTS_PEER"
WAIT_S = 600.0


class Digest:
    """Of named tensors, whatever their order and however they are parted."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._parts[name] = hashlib.sha256(
            tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        ).hexdigest()

    def write(self, end: str) -> None:
        whole = hashlib.sha256(repr(sorted(self._parts.items())).encode()).hexdigest()
        with Path(f"{os.environ[FILE]}.{end}").open("a") as file:
            file.write(f"{len(self._parts)} {whole}\n")


async def meet(transfer: int) -> None:
    """Say that transfer number `transfer` (from 1) of this run begins, and wait until the other run says so of its
    own."""
    Path(f"{os.environ[FILE]}.ready").write_text(f"{transfer}")
    other, deadline = Path(f"{os.environ[PEER]}.ready"), time.monotonic() + WAIT_S
    while not (other.exists() and int(other.read_text() or 0) >= transfer):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{other}: the other run does not get to transfer {transfer}")
        await asyncio.sleep(0.02)

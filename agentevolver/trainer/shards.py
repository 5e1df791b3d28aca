"""Joining the files of a checkpoint's ranks, each of which holds a piece of every tensor."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from agentevolver.trainer.checkpoints import MODEL, layout_of, shard
from agentevolver.utils.errors import TrainingFailed


@torch.no_grad()
def joined(pieces: Sequence[DTensor]) -> torch.Tensor:
    """Return the whole tensor from the ranks' pieces, in rank order.

    Raises ValueError if it is split along several mesh dimensions, or is a partial sum.
    """
    placements, mesh = pieces[0].placements, pieces[0].device_mesh.mesh
    split = [place.dim for place in placements if isinstance(place, Shard)]
    if len(split) > 1 or not all(isinstance(place, Shard | Replicate) for place in placements):
        raise ValueError(f"a tensor with the placements {placements} cannot be joined")
    # Along a replicated dimension of the mesh all pieces are equal, so the first one is used.
    owners = mesh[tuple(slice(None) if isinstance(place, Shard) else 0 for place in placements)].reshape(-1)
    own = [pieces[int(rank)].to_local() for rank in owners]
    return torch.cat(own, dim=split[0]) if split else own[0]


def read_shards(folder: Path, kind: str, ranks: int) -> list[dict[str, Any]]:
    """Return the contents of each rank's file of a kind (`checkpoints.KINDS`); tensors are memory-mapped."""
    return [
        torch.load(shard(folder, kind, ranks, rank), map_location="cpu", mmap=True, weights_only=True)
        for rank in range(ranks)
    ]


def whole_state(actor: Path) -> dict[str, torch.Tensor]:
    """Return the policy's tensors of an `actor` folder, in their stored types.

    Raises TrainingFailed if a file is missing or torn, or the pieces do not fit.
    """
    layout = layout_of(actor)
    if layout is None:
        raise TrainingFailed(f"{actor} does not say how many ranks wrote it")
    try:
        saved = read_shards(actor, MODEL, layout.ranks)
        return {name: _whole(name, [pieces[name] for pieces in saved]) for name in saved[0]}
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
        raise TrainingFailed(f"the {layout.ranks} files of {actor} cannot be joined: {error}") from error


def _whole(name: str, pieces: Sequence[Any]) -> torch.Tensor:
    first = pieces[0]
    if isinstance(first, DTensor):
        return joined(pieces)
    if not isinstance(first, torch.Tensor):
        raise ValueError(f"{name} is a {type(first).__name__}, which only the ranks that wrote it can read")
    # What FSDP does not split is the same on all ranks.
    if any(piece.shape != first.shape or not torch.equal(piece, first) for piece in pieces[1:]):
        raise ValueError(f"{name} differs between the ranks and does not say how it is split")
    return first

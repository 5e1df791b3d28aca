"""Forward and backward passes over rows that are cut after their last token in the mask.

In a causal model no token sees a later one, so log-probs, loss and gradients of the tokens in `response_mask` equal
those of whole rows, without the cost of what follows. The update of one turn sets a key in `extra_info` and the worker
cuts; rows in the queue stay whole.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu

# Key of a batch's `extra_info`: cut the rows.
KEY = "ends_at_mask"


def is_asked(data: TensorDict) -> bool:
    """Return whether a batch's rows are to be cut, and remove the mark."""
    return bool(tu.pop(data, key=KEY, default=False))


def cut(data: TensorDict) -> TensorDict:
    """Return the rows up to their last token in `response_mask` (R_i a row). `data` is not changed.

    Ragged columns as long as `input_ids` or as the response are cut, others stay. A row without a masked token keeps
    the first token of its response. Rows with several positions a token (those with images) stay whole.
    """
    if data["position_ids"].dim() != 2:
        return data
    masks = data["response_mask"]
    whole, response = _lengths(data["input_ids"]), _lengths(masks)
    ends = torch.stack([_end(mask) for mask in masks.unbind()]).to(response.device)
    shortened = data.copy()
    for name in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        column = data[name]
        if name == "prompts" or not _is_ragged(column):
            continue
        if torch.equal(_lengths(column), whole):
            shortened[name] = _shortened(column, whole - response + ends)
        elif torch.equal(_lengths(column), response):
            shortened[name] = _shortened(column, ends)
    return shortened


def filled(output: TensorDict, whole: TensorDict) -> TensorDict:
    """Pad the output columns of a pass over cut rows with zeros to the lengths of the rows in `whole`."""
    lengths = _lengths(whole["input_ids"])
    for name in list(output.keys()):
        if _is_ragged(output[name]):
            rows = [
                torch.cat([row, row.new_zeros(int(length) - len(row), *row.shape[1:])])
                for row, length in zip(output[name].unbind(), lengths, strict=True)
            ]
            output[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    return output


def _is_ragged(column: object) -> bool:
    return isinstance(column, Tensor) and column.is_nested


def _lengths(column: Tensor) -> Tensor:
    offsets: Tensor = column.offsets()  # type: ignore[attr-defined]
    return offsets.diff()


def _end(mask: Tensor) -> Tensor:
    """Return the number of tokens up to the last one in a row's mask (R), at least 1."""
    places = torch.arange(1, len(mask) + 1, device=mask.device)
    return (places * (mask != 0)).max().clamp(min=1)


def _shortened(column: Tensor, lengths: Tensor) -> Tensor:
    rows = [row[: int(length)] for row, length in zip(column.unbind(), lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

"""Passes of the policy over rows that end with their last token in the mask.

No token of a causal model sees a later one: log-probs, loss and gradients of the tokens in `response_mask` are those of
the whole rows, without the work for what follows. An update of one turn asks for it by `extra_info`, and the worker
cuts: the rows in the queue stay whole.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu

# In a batch's `extra_info`: rows are to be cut.
KEY = "ends_at_mask"


def is_asked(data: TensorDict) -> bool:
    """Tell whether a batch's rows are to be cut, and take the mark off."""
    return bool(tu.pop(data, key=KEY, default=False))


def cut(data: TensorDict) -> TensorDict:
    """Return the rows up to their last token in `response_mask` (R_i a row): every ragged column that is as long as
    `input_ids` or as the response is cut, the rest stays; `data` is not changed.

    The first token of a response stays where none is in the mask. Rows with several positions a token (those with
    images) stay whole.
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
    """Return a pass's columns as long as the rows of `whole`, which were cut for it, with zeros at their ends."""
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
    """Return how many tokens there are up to the last one in a row's mask (R), 1 at least."""
    places = torch.arange(1, len(mask) + 1, device=mask.device)
    return (places * (mask != 0)).max().clamp(min=1)


def _shortened(column: Tensor, lengths: Tensor) -> Tensor:
    rows = [row[: int(length)] for row, length in zip(column.unbind(), lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

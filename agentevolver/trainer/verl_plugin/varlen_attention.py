"""Causal attention of packed sequences by torch's varlen FlashAttention: the transformers attention `torch_varlen`.

`sdpa` would need a mask of tokens x tokens, and `flash-attn` would have to be compiled for each torch.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

NAME = "torch_varlen"

_KNOWN = "_agentevolver_sequence_bounds"


@dataclass(frozen=True)
class SequenceBounds:
    """Bounds of the sequences in a packed row."""

    cumulative: torch.Tensor
    """int32 [sequences + 1] on the row's device: each sequence's first token, then the number of tokens."""
    longest: int
    """Tokens of the longest sequence."""

    @functools.cached_property
    def lengths(self) -> list[int]:
        return [int(length) for length in self.cumulative.diff().tolist()]


def sequence_bounds(position_ids: torch.Tensor) -> SequenceBounds:
    # Cached on the tensor, so that all layers of a forward pass, and recomputation, synchronise with the device once.
    # The version detects writes to the tensor.
    version = None if position_ids.is_inference() else position_ids._version
    known = getattr(position_ids, _KNOWN, None)
    if known is not None and known[0] == version:
        bounds: SequenceBounds = known[1]
        return bounds
    row = position_ids.reshape(-1)
    # A sequence begins where a position does not follow the previous one.
    starts = F.pad(torch.diff(row) != 1, (1, 0), value=True).nonzero().flatten()
    cumulative = F.pad(starts, (0, 1), value=row.numel()).to(torch.int32)
    bounds = SequenceBounds(cumulative, int(cumulative.diff().max()))
    setattr(position_ids, _KNOWN, (version, bounds))
    return bounds


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    position_ids: torch.Tensor | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each packed sequence, with the signature that transformers calls.

    Args:
        query: [1, heads, tokens, head size]; key and value may have fewer heads (GQA).
        scaling: factor of the scores; 1 / sqrt(head size) if None.
        sliding_window: number of tokens that a token sees, itself included; all before it if None.
        position_ids: [1, tokens].

    Returns [1, tokens, heads, head size], and None for weights. Raises ValueError for padding, sequence parallelism,
    dropout, soft caps, attention sinks and non-causal attention.
    """
    _refuse(
        module, query, attention_mask, position_ids, dropout=dropout, is_causal=is_causal, softcap=softcap, s_aux=s_aux
    )
    assert position_ids is not None
    bounds = sequence_bounds(position_ids)
    if query.dtype == torch.float32 and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    # Half precision on a GPU uses the flash kernel; anything else runs exactly but slower, sequence by sequence.
    window = sliding_window if sliding_window is not None and sliding_window < bounds.longest else None
    if _fits_flash(query):
        packed = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
        return _flash(*packed, bounds=bounds, scaling=scaling, window=window).unsqueeze(0), None
    return _by_sequence(query, key, value, bounds.lengths, scaling, window).transpose(1, 2), None


def register() -> None:
    """Register `attn_implementation=torch_varlen` with transformers."""
    AttentionInterface.register(NAME, varlen_attention)
    # With this mask function a padding mask reaches the attention, which refuses it.
    AttentionMaskInterface.register(NAME, flash_attention_mask)


def _refuse(
    module: torch.nn.Module,
    query: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    *,
    dropout: float,
    is_causal: bool | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> None:
    def refuse(what: str, instead: str) -> None:
        raise ValueError(f"attn_implementation={NAME} {what}: {instead}")

    other = "set actor_rollout_ref.model.override_config.attn_implementation to flash_attention_2 or sdpa"
    if attention_mask is not None or query.shape[0] != 1:
        refuse(
            f"takes one packed row, not {query.shape[0]} padded ones",
            "set actor_rollout_ref.model.use_remove_padding to true",
        )
    if position_ids is None or position_ids.shape != (1, query.shape[2]):
        shape = None if position_ids is None else tuple(position_ids.shape)
        refuse(f"takes position ids of one row of {query.shape[2]} tokens, not {shape}", other)
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        refuse("is causal, the model's attention is not", other)
    if dropout:
        refuse(f"has no dropout, the model asks for {dropout}", f"set attention_dropout to 0, or {other}")
    for name, asked in (("soft caps", softcap), ("attention sinks", s_aux)):
        if asked is not None:
            refuse(f"has no {name}, which the model asks for", other)


def _fits_flash(query: torch.Tensor) -> bool:
    size = query.shape[-1]
    return query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) and size % 8 == 0 and size <= 256


@functools.cache
def _asks_for_gqa() -> bool:
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    bounds: SequenceBounds,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Return the attention of [tokens, heads, head size] by torch's kernel, in the same shape."""
    from torch.nn.attention.varlen import varlen_attn

    told: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]} if _asks_for_gqa() else {}
    return varlen_attn(  # type: ignore[return-value]
        query,
        key,
        value,
        bounds.cumulative,
        bounds.cumulative,
        bounds.longest,
        bounds.longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **told,
    )


def _by_sequence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Return the attention of [1, heads, tokens, head size] one sequence at a time, in the same shape."""
    gqa = query.shape[1] != key.shape[1]
    outputs = []
    for q, k, v in zip(*(torch.split(x, lengths, dim=2) for x in (query, key, value)), strict=True):
        tokens = q.shape[2]
        mask = None
        if window is not None and window < tokens:
            allowed = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device)
            mask = allowed.tril().triu(1 - window)
        outputs.append(
            F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=gqa
            )
        )
    return torch.cat(outputs, dim=2)

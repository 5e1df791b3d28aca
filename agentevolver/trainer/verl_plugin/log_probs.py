"""Log-probs of labels in chunks of rows, in float32, without flash-attn's kernel; of ids that vLLM samples alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from verl.workers.rollout.utils import get_vision_placeholder_token_ids

from agentevolver.utils.errors import ConfigError

# Extra memory of both passes is a fixed multiple of this.
CHUNK_ELEMENTS = 2**26
"""Logits that are widened to float32 at once: 256 MiB."""

# Probability 0 in every precision. -inf would give an entropy of 0 * -inf = NaN.
MASKED_LOGIT = -1e4


def mask_unsampled(module: torch.nn.Module, model: Any) -> None:
    """Mask the logits of token ids that verl masks in vLLM (`monkey_patch_model`): rows of the embedding beyond the
    tokenizer, and placeholders of images. `model` is verl's `HFModelConfig`. Raises ConfigError for fused kernels."""
    rows = model.hf_config.get_text_config().vocab_size
    masked = [*range(len(model.tokenizer), rows), *get_vision_placeholder_token_ids(model.processor)]
    if masked and model.use_fused_kernels:
        raise ConfigError(
            f"actor_rollout_ref.model.use_fused_kernels=true: vLLM never samples {len(masked)} of this model's {rows} "
            "token ids, and fused kernels cannot mask them in the trainer: set it to false"
        )
    ids = torch.tensor(masked)

    def mask(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        # In place, to save memory. The gradient needs nothing: it is 0 where the probability is.
        with torch.no_grad():
            output.logits.index_fill_(-1, ids.to(output.logits.device), MASKED_LOGIT)

    if masked:
        module.register_forward_hook(mask)


def log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return log softmax(logits)[labels].

    `logits` is [..., vocabulary], `labels` int64 [...]; the result is [...] in float32, or float64 for float64 logits.
    """
    flat: torch.Tensor = _LogProbs.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))  # type: ignore[no-untyped-call]
    return flat.view(labels.shape)


def install() -> None:
    """Make verl call `log_probs` if flash-attn is not installed."""
    from verl.utils import torch_functional

    # verl has no registry for this function. Its own one loops over tokens and rounds each result in half precision (an
    # error of 6e-2 at a vocabulary of 151,936).
    torch_functional.logprobs_from_logits_v2 = log_probs


def _chunks(logits: torch.Tensor) -> Iterator[slice]:
    tokens, vocabulary = logits.shape
    step = max(1, CHUNK_ELEMENTS // vocabulary)
    return (slice(start, start + step) for start in range(0, tokens, step))


class _LogProbs(torch.autograd.Function):
    """d log p(label) / d logit_j = [j = label] - p_j, with p_j = exp(logit_j - logsumexp)."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        labels = labels.unsqueeze(-1)
        result = torch.empty(labels.shape, dtype=wide, device=logits.device)
        for rows in _chunks(logits):
            torch.gather(torch.log_softmax(logits[rows], -1, dtype=wide), -1, labels[rows], out=result[rows])
        ctx.save_for_backward(logits, labels, result)
        return result.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, labels, result = ctx.saved_tensors
        grad = grad.unsqueeze(-1).to(result.dtype)
        logsumexp = logits.gather(-1, labels) - result
        output = torch.empty_like(logits)
        for rows in _chunks(logits):
            place = output[rows] if output.dtype == result.dtype else None
            probability = torch.sub(logits[rows], logsumexp[rows], out=place).exp_()
            torch.mul(probability, grad[rows].neg(), out=output[rows])
        # The label's own entry uses expm1 instead of 1 - p: in half precision 1 - p is 0 for every confident token.
        output.scatter_(-1, labels, (grad * -result.expm1()).to(output.dtype))
        return output, None

"""Token ids that vLLM never samples have no probability in the trainer either.

verl masks them in vLLM (`monkey_patch_model`): the rows that pad the embedding beyond the tokenizer, and placeholders
of images. Without the same mask, the trainer's log-probs are those of another policy.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.utils import get_vision_placeholder_token_ids

from agentevolver.utils.errors import ConfigError

# Probability 0 in every precision. -inf would give an entropy of 0 * -inf = NaN.
MASKED_LOGIT = -1e4


def mask_unsampled(module: torch.nn.Module, model: Any) -> None:
    """Mask the logits of a causal language model; `model` is verl's `HFModelConfig`.

    Raises:
        ConfigError: fused kernels, which give no logits, with ids to mask.
    """
    rows = model.hf_config.get_text_config().vocab_size
    masked = [*range(len(model.tokenizer), rows), *get_vision_placeholder_token_ids(model.processor)]
    if not masked:
        return
    if model.use_fused_kernels:
        raise ConfigError(
            f"actor_rollout_ref.model.use_fused_kernels=true: vLLM never samples {len(masked)} of this model's {rows} "
            "token ids, and fused kernels cannot mask them in the trainer: set it to false"
        )
    ids = torch.tensor(masked)

    def mask(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        # In place, to save memory. The gradient needs nothing: it is 0 where the probability is.
        with torch.no_grad():
            output.logits.index_fill_(-1, ids.to(output.logits.device), MASKED_LOGIT)

    module.register_forward_hook(mask)

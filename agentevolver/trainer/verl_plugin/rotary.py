"""Rotary frequencies in float32, whatever type the weights have.

verl casts a model as a whole to `fsdp_config.model_dtype`, its rotary frequencies too. In bf16 those are off by up to
2^-9, so that a token's angle is off by radians after a thousand tokens: the actor then has other log-probs than vLLM
for the same weights. transformers keeps them in float32 when it loads a model, and so does vLLM.
"""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)

FREQUENCIES = "inv_freq"
"""How the names of such buffers end in transformers (one for each type of layer in some models)."""


def restore_rotary(model: torch.nn.Module) -> int:
    """Compute the rotary frequencies of `model` again where they are in half precision; returns of how many modules.

    The module is made again from its own configuration, on the device that its buffers are on, `meta` included.
    """
    restored = 0
    for name, module in model.named_modules():
        rounded = [
            buffer
            for key, buffer in module.named_buffers(recurse=False)
            if key.endswith(FREQUENCIES) and buffer.dtype in (torch.float16, torch.bfloat16)
        ]
        if not rounded:
            continue
        if (config := getattr(module, "config", None)) is None:
            logger.warning(
                "the rotary frequencies of %s (%s) are rounded to %s and cannot be made again: set "
                "fsdp_config.model_dtype to fp32",
                name,
                type(module).__name__,
                rounded[0].dtype,
            )
            continue
        with torch.device(rounded[0].device):
            fresh = type(module)(config)
        for key, buffer in fresh.named_buffers(recurse=False):
            module.register_buffer(key, buffer, persistent=key not in module._non_persistent_buffers_set)
        restored += 1
    return restored

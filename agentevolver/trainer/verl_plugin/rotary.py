"""Rotary frequencies in float32, whatever the type of the weights."""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)

FREQUENCIES = "inv_freq"
"""Suffix of their names in transformers; some models have one buffer per layer type."""


def restore_rotary(model: torch.nn.Module) -> int:
    """Recompute rotary frequencies that are in half precision; return the number of modules."""
    # verl casts the whole model to `fsdp_config.model_dtype`. In bf16 frequencies are off by up to 2^-9, so that angles
    # are off by radians after a thousand tokens and log-probs differ from vLLM's. transformers and vLLM keep float32.
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
                "the rotary frequencies of %s (%s) are rounded to %s and cannot be recomputed: set "
                "fsdp_config.model_dtype to fp32",
                name,
                type(module).__name__,
                rounded[0].dtype,
            )
            continue
        # The module is rebuilt from its configuration on the device of its buffers, `meta` included.
        with torch.device(rounded[0].device):
            fresh = type(module)(config)
        for key, buffer in fresh.named_buffers(recurse=False):
            module.register_buffer(key, buffer, persistent=key not in module._non_persistent_buffers_set)
        restored += 1
    return restored

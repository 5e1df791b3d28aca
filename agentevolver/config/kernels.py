"""Limits of the attention kernels and of vLLM's prefill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentevolver.utils.errors import ConfigError


def check_kernels(value: Callable[[str], Any]) -> None:
    """Check that the chosen kernels support the configuration.

    Args:
        value: returns the value at a dotted path of the configuration.

    Raises:
        ConfigError: one line that says what to change.
    """
    for problem in (_attention(value), _prefill(value)):
        if problem is not None:
            raise ConfigError(problem)


def _attention(value: Callable[[str], Any]) -> str | None:
    """Return why `torch_varlen` does not support the configuration, or None."""
    place = "actor_rollout_ref.model.override_config.attn_implementation"
    if value(place) != "torch_varlen":
        return None
    if not value("actor_rollout_ref.model.use_remove_padding"):
        return (
            f"{place} = torch_varlen needs packed rows: set actor_rollout_ref.model.use_remove_padding to "
            "true, or write sdpa"
        )
    for section in ("actor", "actor.fsdp_config", "ref", "ref.fsdp_config"):
        key = f"actor_rollout_ref.{section}.ulysses_sequence_parallel_size"
        if (size := value(key)) > 1:
            return (
                f"{key} = {size}: {place} = torch_varlen does not split a sequence over GPUs, set it to 1 or "
                "install flash-attn"
            )
    return None


def _prefill(value: Callable[[str], Any]) -> str | None:
    """Return why vLLM cannot prefill the prompts, or None."""
    rollout = "actor_rollout_ref.rollout"
    batch, longest = value(f"{rollout}.max_num_batched_tokens"), value(f"{rollout}.max_model_len")
    # Each request has a seeded generator. After a part of a prompt vLLM sets it back, which a CPU generator does not
    # support: the engine would die.
    if value("device_name") == "cpu" and value(f"{rollout}.enable_chunked_prefill"):
        return (
            f"{rollout}.enable_chunked_prefill = true: on a CPU prompts are prefilled whole, because every "
            "request has a seed; remove it"
        )
    if not value(f"{rollout}.enable_chunked_prefill") and batch < longest:
        return (
            f"{rollout}.max_num_batched_tokens = {batch} is less than max_model_len = {longest}, and prompts are "
            "prefilled whole "
            f"(enable_chunked_prefill = false): set it to {longest}"
        )
    return None

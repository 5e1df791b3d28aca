"""What the attention kernels and vLLM's prefill cannot compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentevolver.utils.errors import ConfigError


def check_kernels(value: Callable[[str], Any]) -> None:
    """Refuse what the chosen kernels cannot compute.

    Args:
        value: returns the value at a dotted path of the configuration.

    Raises:
        ConfigError: with one line that says what to change.
    """
    for problem in (_attention(value), _prefill(value)):
        if problem is not None:
            raise ConfigError(problem)


def _attention(value: Callable[[str], Any]) -> str | None:
    """Return why `torch_varlen` cannot compute what a configuration asks for, in one line;
    None where it can, or is not chosen.

    Args:
        value: returns what stands at a dotted path of the configuration.
    """
    place = "actor_rollout_ref.model.override_config.attn_implementation"
    if value(place) != "torch_varlen":
        return None
    if not value("actor_rollout_ref.model.use_remove_padding"):
        return (
            f"{place} = torch_varlen takes packed rows alone: set actor_rollout_ref.model.use_remove_padding to "
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
    """Return why vLLM could not prefill what a configuration lets it be asked, in one line;
    None where it can. `value` as above.

    On a CPU its generators, one for each request, cannot be set back, as they are after a part of a prompt: its engine
    would end.
    """
    rollout = "actor_rollout_ref.rollout"
    batch, longest = value(f"{rollout}.max_num_batched_tokens"), value(f"{rollout}.max_model_len")
    if value("device_name") == "cpu" and value(f"{rollout}.enable_chunked_prefill"):
        return (
            f"{rollout}.enable_chunked_prefill = true: on a CPU prompts are prefilled whole, as every request has "
            "a seed; remove it"
        )
    if not value(f"{rollout}.enable_chunked_prefill") and batch < longest:
        return (
            f"{rollout}.max_num_batched_tokens = {batch} is less than max_model_len = {longest}, and prompts are "
            "prefilled whole "
            f"(enable_chunked_prefill = false): set it to {longest}"
        )
    return None

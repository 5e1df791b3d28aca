"""Device groups: which one a run takes, and what it reads off the machine. Asks the file system and package metadata;
nothing is imported.

`device: auto` takes `cuda` where an NVIDIA driver is at hand, else `cpu`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = get_args(Device)

DESCRIPTIONS: dict[str, str] = {"cpu": "the CPU group", "cuda": "the GPU group"}


def has_gpu() -> bool:
    """Whether an NVIDIA driver is at hand and `CUDA_VISIBLE_DEVICES` does not hide every GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return bool(_device_files()) or shutil.which("nvidia-smi") is not None


def visible_gpus() -> int:
    """Return how many GPUs a CUDA program started now would see;
    at least 1, so that a GPU's configuration composes anywhere."""
    files = len(_device_files())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return max(1, files)
    count = 0
    for entry in visible.split(","):
        if (
            not entry.strip()
            or entry.strip().startswith("-")
            or (entry.strip().isdigit() and files and int(entry) >= files)
        ):
            break  # CUDA ignores an entry that it cannot read, and all behind it
        count += 1
    return max(1, count)


def gpus_of(frozen: int, training: int) -> tuple[str, str] | None:
    """Return CUDA_VISIBLE_DEVICES of the training and of the frozen policies' server, which takes the last ones; None
    where they share all of them, or there are not enough.

    Args:
        frozen: GPUs of the server; 0: it shares the training's.
        training: GPUs of the training.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible is not None else None
    seen = names or [str(index) for index in range(len(_device_files()) or frozen + training)]
    if not frozen or len(seen) < frozen + training:
        return None
    return ",".join(seen[: len(seen) - frozen]), ",".join(seen[len(seen) - frozen :])


def attention() -> str:
    """Return the attention of the groups for GPUs: flash-attn's where that package is installed,
    else torch's own varlen kernel."""
    try:
        metadata.version("flash-attn")
    except metadata.PackageNotFoundError:
        return "torch_varlen"
    return "flash_attention_2"


def automatic() -> Device:
    """Return the group that `device: auto` stands for on this machine."""
    return "cuda" if has_gpu() else "cpu"


def attention_problem(value: Callable[[str], Any]) -> str | None:
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


def prefill_problem(value: Callable[[str], Any]) -> str | None:
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


def _device_files() -> list[Path]:
    return [path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]

"""Device groups. Reads the file system and package metadata, and imports nothing.

`device: auto` is `cuda` if an NVIDIA driver is found, else `cpu`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, get_args

from agentevolver.config.layers import Layer, written
from agentevolver.utils.errors import ConfigError

Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = get_args(Device)

VISIBLE = "CUDA_VISIBLE_DEVICES"
# The beginning of a GPU's name; CUDA takes indices and ids.
_NAME = re.compile(r"\d|GPU-|MIG-", re.ASCII)
CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
# Parameters from which bf16 is worth its rounding on a CPU. It moves the log-probs of the engine from the trainer's by
# .019 nats a token at .5 B and by .048 at .135 B (Qwen2.5-Coder and SmolLM2, temperature 1), where fp32 has 1e-5.
BF16_FROM = 300_000_000

DESCRIPTIONS: dict[str, str] = {"cpu": "the CPU group", "cuda": "the GPU group"}


def has_gpu() -> bool:
    """Whether an NVIDIA driver is found and `CUDA_VISIBLE_DEVICES` does not hide every GPU."""
    if hides_gpus(os.environ.get(VISIBLE)):
        return False
    return bool(_device_files()) or shutil.which("nvidia-smi") is not None


def hides_gpus(visible: str | None) -> bool:
    """Whether a value of `CUDA_VISIBLE_DEVICES` names no GPU, as "", "-1" and Slurm's "NoDevFiles"."""
    return visible is not None and not _NAME.match(visible.strip())


def visible_gpus() -> int:
    """Return the number of GPUs visible to a CUDA program, at least 1."""
    # At least 1, so that a configuration for GPUs can be composed on any machine.
    files = len(_device_files())
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return max(1, files)
    count = 0
    for entry in map(str.strip, visible.split(",")):
        if not _NAME.match(entry) or (entry.isdecimal() and files and int(entry) >= files):
            break  # CUDA ignores an invalid entry and all entries after it
        count += 1
    return max(1, count)


def gpus_of(frozen: int, training: int) -> tuple[str, str] | None:
    """Return CUDA_VISIBLE_DEVICES of the training and of the frozen policies' server, which takes the last GPUs. None
    if both share all GPUs, or there are too few.

    Args:
        frozen: GPUs of the server; 0: it shares the training's.
        training: GPUs of the training.
    """
    visible = os.environ.get(VISIBLE)
    names = [name.strip() for name in visible.split(",")] if visible is not None else None
    seen = names or [str(index) for index in range(len(_device_files()) or frozen + training)]
    if not frozen or len(seen) < frozen + training:
        return None
    return ",".join(seen[: len(seen) - frozen]), ",".join(seen[len(seen) - frozen :])


def attention() -> str:
    """Return the attention implementation for GPUs: flash-attn if installed, else torch's own varlen kernel."""
    try:
        metadata.version("flash-attn")
    except metadata.PackageNotFoundError:
        return "torch_varlen"
    return "flash_attention_2"


def has_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 matrices in hardware."""
    try:
        words = CPUINFO.read_text(encoding="utf-8").split()
    except OSError:  # another system than Linux
        return False
    return not BF16_FLAGS.isdisjoint(words)


def cpu_precision(parameters: int) -> dict[str, str]:
    """Return verl's precision keys on this CPU for a model of so many parameters. Master weights stay in fp32."""
    half = parameters >= BF16_FROM and has_bf16()
    passes, engine = ("bf16", "bfloat16") if half else ("fp32", "float32")
    models = {f"actor_rollout_ref.{one}.fsdp_config.mixed_precision.param_dtype": passes for one in ("actor", "ref")}
    return {**models, "actor_rollout_ref.rollout.dtype": engine}


def take_device(layers: Sequence[Layer]) -> Device:
    """Remove `device` from the layers and return the device group. Raises ConfigError."""
    chosen = written(layers, "device") or "auto"
    for layer in layers:
        layer.content.pop("device", None)
    if chosen == "auto":
        return "cuda" if has_gpu() else "cpu"
    if chosen == "cuda_small":
        raise ConfigError("device: cuda_small has another name: write cuda, the sizes follow from the model")
    if chosen not in DEVICES:
        raise ConfigError(f"device: {chosen!r} is not known, write auto, {', '.join(DEVICES[:-1])} or {DEVICES[-1]}")
    return chosen


def _device_files() -> list[Path]:
    return [path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]

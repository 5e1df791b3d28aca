"""GPU preflight: visible GPUs, the policy's folder and the memory estimate. Does not import torch."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.devices import hides_gpus
from agentevolver.config.model import DecoderSize
from agentevolver.config.model_files import snapshot
from agentevolver.launcher.memory import demand
from agentevolver.utils import recipes
from agentevolver.utils.errors import LaunchError

TIMEOUT_S = 20.0
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")


def nvidia_smi() -> str | None:
    """Return the output of `QUERY` (memory in MiB), or None if nvidia-smi does not answer."""
    if shutil.which(QUERY[0]) is None:
        return None
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def gpu_memory(environment: Mapping[str, str], query: Callable[[], str | None] = nvidia_smi) -> list[int] | None:
    """Return the bytes of each GPU in CUDA_VISIBLE_DEVICES, or None if unknown (no nvidia-smi, MIG, shared memory)."""
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    if hides_gpus(devices):
        return []
    text = query()
    if text is None or "MIG-" in (devices or ""):
        return None
    lines = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
    rows = [cells for cells in lines if len(cells) == 3 and cells[0].isdecimal()]
    if not all(memory.isdecimal() for _, _, memory in rows):
        return None
    chosen = rows
    if devices is not None:
        chosen = []
        for name in map(str.strip, devices.split(",")):
            match = [row for row in rows if row[0] == name or (len(name) > 4 and row[1].startswith(name))]
            if not match:  # CUDA ignores an unknown device and all that follow it
                break
            chosen += match
    return [int(memory) << 20 for _, _, memory in chosen]


def examine(config: DictConfig, environment: Mapping[str, str]) -> list[str]:
    """Return the memory estimate as lines, with a warning if memory is tight.

    Args:
        environment: variables of the run's processes.

    Raises:
        LaunchError: the run cannot start on this machine's GPUs.
    """
    # A joined cluster has GPUs of its own.
    memory = smallest_gpu(config, environment) if OmegaConf.select(config, "ray.address") is None else None
    folder = snapshot(str(config.actor_rollout_ref.model.path))
    if folder is None:
        return []
    try:
        model = DecoderSize.of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, KeyError, ValueError, TypeError):  # no decoder; `check_model` names a missing file
        return []
    need = demand(config, model)
    lines = need.describe(memory)
    if memory is not None:
        if (problem := need.problem(memory)) is not None:
            raise LaunchError(problem)
        lines += filter(None, [need.warning(memory)])
    return lines


def smallest_gpu(config: DictConfig, environment: Mapping[str, str]) -> int | None:
    """Return the bytes of the smallest GPU of the run, or None if nvidia-smi does not answer.

    Raises:
        LaunchError: too few GPUs are visible, or torch was built without CUDA.
    """
    found = gpu_memory(environment)
    if found == [] or (found is None and not any(Path("/dev").glob("nvidia[0-9]*"))):
        reason = "CUDA_VISIBLE_DEVICES leaves none" if found == [] else "nvidia-smi does not answer"
        raise LaunchError(
            f"device=cuda, but no GPU is visible ({reason}): install NVIDIA's driver, or run on the CPU with device=cpu"
        )
    # The version's suffix says how torch was built; importing torch would take seconds.
    if metadata.version("torch").endswith("+cpu"):
        raise LaunchError(
            "device=cuda, but the installed torch was built without CUDA: run `bash install.sh --cuda`, or run with "
            "device=cpu"
        )
    if found is None:
        return None
    wanted, frozen = int(config.trainer.n_gpus_per_node), recipes.frozen_gpus(config) or 0
    most = len(found) - frozen
    if most < wanted:
        beside = f" and {frozen} for the frozen policies" if frozen else ""
        instead = f"trainer.n_gpus_per_node={most}" if most > 0 else "both to share one: none for the frozen policies"
        raise LaunchError(f"trainer.n_gpus_per_node={wanted}{beside}, but {len(found)} are visible: set {instead}")
    # The trainer takes the first GPUs, the server of frozen policies the last ones.
    return min(found[:wanted] + found[most:])

"""Checks of a machine with GPUs before Ray starts: the GPUs, the driver, the attention, the policy's files, the memory.

Each answers without importing torch. What would fail minutes later is refused in one line; what may fail is a line of
warning.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from agentevolver.errors import LaunchError
from agentevolver.launcher.decoder import Decoder
from agentevolver.launcher.gpus import Run, driver, driver_problem, gpus, run_tool, torch_cuda
from agentevolver.launcher.memory import demand
from agentevolver.launcher.model_files import check_files, folder_of

ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
# What transformers brings itself, and the packages that others need.
BUILT_IN = frozenset({"sdpa", "eager", "flex_attention"})
PACKAGES = {
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash_attention_4": "flash_attn.cute",
}
# What verl takes where nothing is configured.
DEFAULT_ATTENTION = "flash_attention_2"


@dataclass(frozen=True)
class Report:
    """What was found: why a start would fail, first things first, and lines worth knowing."""

    problems: list[LaunchError]
    lines: list[str]


def check_accelerator(config: DictConfig, environment: Mapping[str, str]) -> list[str]:
    """Refuse what cannot run on this machine; returns the estimate of memory and warnings, as lines.

    Args:
        environment: what the run's processes will have.

    Raises:
        LaunchError: the first problem, with what to do.
    """
    report = examine(config, environment)
    if report.problems:
        raise report.problems[0]
    return report.lines


def examine(config: DictConfig, environment: Mapping[str, str], *, ask_hub: bool = True, run: Run = run_tool) -> Report:
    """Look at everything, whatever is found. The machine itself is looked at only where the run starts a cluster of its
    own on it."""
    problems: list[LaunchError] = []
    memory: int | None = None
    path = str(config.actor_rollout_ref.model.path)
    try:
        memory = check_gpus(config, environment, run) if OmegaConf.select(config, "ray.address") is None else None
    except LaunchError as error:
        problems.append(error)
    if (reason := attention_problem(config)) is not None:
        problems.append(LaunchError(reason))
    try:
        check_files(path, environment, ask_hub=ask_hub)
    except LaunchError as error:
        problems.append(error)
    model = model_of(path)
    if model is None:
        return Report(problems, [])
    need = demand(config, model)
    lines = need.describe(memory)
    if memory is not None:
        if (reason := need.problem(memory)) is not None:
            problems.append(LaunchError(reason))
        elif (tight := need.warning(memory)) is not None:
            lines.append(tight)
    return Report(problems, lines)


def check_gpus(config: DictConfig, environment: Mapping[str, str], run: Run) -> int | None:
    """Refuse a machine without the GPUs that are asked for, or with a driver too old; returns the bytes of the
    smallest, if they are known.

    Raises:
        LaunchError: with what to do.
    """
    found, installed, built_for = gpus(environment, run), driver(run), torch_cuda()
    wanted = int(config.trainer.n_gpus_per_node)
    if found == [] or (found is None and installed is None):
        reason = "CUDA_VISIBLE_DEVICES leaves none" if found == [] else "nvidia-smi does not answer"
        raise LaunchError(
            f"device=cuda, and no GPU is seen ({reason}): install NVIDIA's driver, or run on the CPU with device=cpu"
        )
    if found is not None and len(found) < wanted:
        raise LaunchError(
            f"trainer.n_gpus_per_node={wanted}, and {len(found)} can be seen: set trainer.n_gpus_per_node={len(found)}"
        )
    if built_for is None and importlib.util.find_spec("torch") is not None:
        raise LaunchError(
            "device=cuda, and the installed torch is built without CUDA: `bash install.sh --cuda`, or run with "
            "device=cpu"
        )
    if (
        installed is not None
        and built_for is not None
        and (too_old := driver_problem(installed, built_for)) is not None
    ):
        raise LaunchError(too_old)
    return None if found is None else min(gpu.memory for gpu in found[:wanted])


def attention_problem(config: DictConfig) -> str | None:
    """Say why the configured attention is not there, or None."""
    name = OmegaConf.select(config, ATTENTION) or DEFAULT_ATTENTION
    if name in BUILT_IN:
        return None
    if (package := PACKAGES.get(name)) is not None:
        if importlib.util.find_spec(package.partition(".")[0]) is not None:
            return None
        said = f"{ATTENTION}={name}" if OmegaConf.select(config, ATTENTION) else f"verl's default attention {name}"
        return (
            f"{said} needs the package {package.partition('.')[0]}, which is not installed: install it, or set "
            f"{ATTENTION}=sdpa (slower)"
        )
    if "/" in name:  # a kernel on the hub
        missing = importlib.util.find_spec("kernels") is None
        return f"{ATTENTION}={name} needs the package kernels, which is not installed" if missing else None
    library = OmegaConf.select(config, "actor_rollout_ref.model.external_lib")
    if library is not None and _may_name(str(library), name):
        return None
    registers = (
        f"actor_rollout_ref.model.external_lib={library} does not name it"
        if library
        else "no actor_rollout_ref.model.external_lib"
    )
    return (
        f"{ATTENTION}={name} is none of transformers' own ({', '.join(sorted(BUILT_IN | set(PACKAGES)))}), and "
        f"{registers}"
    )


def _may_name(module: str, name: str) -> bool:
    """Whether a module, or one beside it, has `name` as a text in it; read without importing. True where the module
    cannot be found so."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    if spec.origin is None:
        return True
    place = Path(spec.origin)
    files = [place] if not rest else place.parent.joinpath(*rest).parent.glob("*.py")
    return any(f"{quote}{name}{quote}" in file.read_text(encoding="utf-8") for file in files for quote in "\"'")


def model_of(path: str) -> Decoder | None:
    """The size of a policy whose files are here; None for one that is not, or of another kind."""
    folder = folder_of(path)
    if folder is None or not (folder / "config.json").is_file():
        return None
    try:
        return Decoder.of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (KeyError, ValueError, TypeError):
        return None

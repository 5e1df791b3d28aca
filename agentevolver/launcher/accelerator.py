"""GPU preflight: GPUs, driver, attention kernel, the policy's files and memory, checked before Ray starts.

Each answers without importing torch, within milliseconds but for a question to the hub. What would fail minutes later
is refused in one line; what may fail is a line of warning. What cannot be found out is None, never a guess.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from agentevolver.errors import LaunchError, UsageError
from agentevolver.launcher.memory import Decoder, demand

TIMEOUT_S = 20.0
PROC_VERSION = Path("/proc/driver/nvidia/version")
# The first driver of each CUDA major version on Linux; within a major version every driver runs every minor one
# (docs.nvidia.com/deploy/cuda-compatibility, "minor version compatibility").
FIRST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}

Run = Callable[[list[str]], str | None]


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in bytes."""

    index: int
    uuid: str
    name: str
    memory: int
    used: int


@dataclass(frozen=True)
class Driver:
    """The driver's version, and the newest CUDA that its library says it runs."""

    version: str
    cuda: str | None


def run_tool(command: list[str]) -> str | None:
    """The output of a program; None where it is not there, fails, or does not answer in time."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def gpus(environment: Mapping[str, str], run: Run = run_tool) -> list[Gpu] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in nvidia-smi's order; None where nvidia-smi does not answer, or does
    not tell all: the memory of each GPU (MIG, memory shared with the CPU), and parts of GPUs that are chosen (MIG)."""
    text = run(["nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.used", "--format=csv,noheader,nounits"])
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    if devices not in ("", "-1") and ("MIG-" in (devices or "") or any(not row[3].isdecimal() for row in _rows(text))):
        return None
    return _visible(parse_gpus(text), devices)


def parse_gpus(text: str) -> list[Gpu]:
    """Read `--query-gpu=index,uuid,name,memory.total,memory.used --format=csv,noheader,nounits` (MiB).

    Other lines are left out.
    """
    found = []
    for cells in _rows(text):
        if cells[3].isdecimal():
            used = int(cells[4]) if cells[4].isdecimal() else 0
            found.append(Gpu(int(cells[0]), cells[1], cells[2], int(cells[3]) << 20, used << 20))
    return found


def _rows(text: str) -> list[list[str]]:
    lines = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
    return [cells for cells in lines if len(cells) == 5 and cells[0].isdecimal()]


def _visible(found: list[Gpu], devices: str | None) -> list[Gpu]:
    if devices is None:
        return found
    chosen = []
    for name in (part.strip() for part in devices.split(",")):
        match = [
            gpu
            for gpu in found
            if (name.isdecimal() and gpu.index == int(name)) or (len(name) > 4 and gpu.uuid.startswith(name))
        ]
        if not match:  # as CUDA does: what follows an unknown device is not visible
            break
        chosen += match
    return chosen


def driver(run: Run = run_tool, proc: Path = PROC_VERSION) -> Driver | None:
    """The driver of this machine by nvidia-smi, else by the kernel's module; None where there is none."""
    text = run(["nvidia-smi"])
    if text is not None and (found := parse_smi(text)) is not None:
        return found
    try:
        match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", proc.read_text(encoding="utf-8"))
    except OSError:
        return None
    return Driver(match.group(1), None) if match else None


def parse_smi(text: str) -> Driver | None:
    """Read the header of nvidia-smi's table."""
    version = re.search(r"Driver Version:\s*(\d+(?:\.\d+)+)", text)
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", text)
    return None if version is None else Driver(version.group(1), cuda.group(1) if cuda else None)


def torch_cuda() -> str | None:
    """The CUDA version that the installed torch was built for, read in its files.

    None for a build without CUDA, or no torch.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+(?:\.\d+)*)['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


def driver_problem(driver: Driver, built_for: str) -> str | None:
    """Say why this driver cannot run a torch that was built for this CUDA, or None."""
    major = int(built_for.split(".")[0])
    if driver.cuda is not None:
        if int(driver.cuda.split(".")[0]) >= major:
            return None
    elif (first := FIRST_DRIVER.get(major)) is None or tuple(int(part) for part in driver.version.split(".")) >= first:
        return None
    needed = ".".join(str(part) for part in FIRST_DRIVER[major]) if major in FIRST_DRIVER else f"one for CUDA {major}"
    runs = f" (up to CUDA {driver.cuda})" if driver.cuda is not None else ""
    return (
        f"the NVIDIA driver {driver.version}{runs} is too old for the installed torch, which is built for CUDA "
        f"{built_for}: "
        f"install driver {needed} or newer, or a torch for an older CUDA"
    )


KEY = "actor_rollout_ref.model.path"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
HUB_TIMEOUT_S = 10.0
TRUE = frozenset({"1", "true", "yes", "on"})


def looks_local(path: str) -> bool:
    """Whether a model's path can only be a folder."""
    return path.startswith(("/", "./", "../", "~"))


def folder_of(path: str) -> Path | None:
    """The folder that a model is read from without a network: the path itself, or the newest of it in the hub's cache.

    None: neither.
    """
    folder = Path(path).expanduser()
    if looks_local(path) or folder.is_dir():
        return folder if folder.is_dir() else None
    from huggingface_hub.constants import HF_HUB_CACHE

    cached = Path(HF_HUB_CACHE) / f"models--{path.replace('/', '--')}"
    try:
        snapshot = cached / "snapshots" / (cached / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return snapshot if snapshot.is_dir() else None


def missing_in(folder: Path) -> str | None:
    """Name the file that a model's folder lacks, or None."""
    if not (folder / "config.json").is_file():
        return "config.json"
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        return "model.safetensors (or an index of its shards)"
    if found.suffix == ".json":
        shards = json.loads(found.read_text(encoding="utf-8"))["weight_map"].values()
        return next((name for name in sorted(set(shards)) if not (folder / name).is_file()), None)
    return None


def check_files(path: str, environment: Mapping[str, str], *, ask_hub: bool = True) -> None:
    """Refuse a policy that cannot be loaded; one that is not in the cache is asked for at the hub.

    Args:
        environment: what the run's processes will have (HF_HUB_OFFLINE).
        ask_hub: False lets a name pass that is not in the cache.

    Raises:
        UsageError: the folder lacks a file, or nobody has a model of this name.
        LaunchError: the hub does not answer, or may not be asked.
    """
    folder = folder_of(path)
    if folder is not None:
        missing = missing_in(folder)
        if missing is None:
            return
        if looks_local(path):
            raise UsageError(f"{KEY}={path} has no {missing}; give a folder that `from_pretrained` takes")
    if environment.get("HF_HUB_OFFLINE", "").lower() in TRUE:
        raise LaunchError(
            f"{KEY}={path} is not (or not whole) in the Hugging Face cache and HF_HUB_OFFLINE is set: unset it, "
            f"fetch it first with `hf download {path}`, or give a folder"
        )
    if ask_hub:
        _ask_hub(path)


def _ask_hub(path: str) -> None:
    import httpx
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        get_hf_file_metadata(hf_hub_url(path, "config.json"), timeout=HUB_TIMEOUT_S)
    except GatedRepoError as error:
        raise LaunchError(f"{KEY}={path} wants its licence accepted on the hub, and HF_TOKEN set here") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UsageError(
            f"{KEY}={path}: no such folder, and the Hugging Face hub has no model of this name (a private one: set "
            "HF_TOKEN)"
        ) from error
    except (httpx.HTTPError, OSError) as error:
        raise LaunchError(
            f"{KEY}={path} is not in the Hugging Face cache, and the hub does not answer ({type(error).__name__}): "
            f"fetch it where there is a network (`hf download {path}`), or give a folder"
        ) from error


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
    """GPU preflight report: why a start would fail, first things first, and lines worth knowing."""

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
    """Look at everything, whatever is found.

    The machine itself is looked at only where the run starts a cluster of its own on it.
    """
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
    wanted, frozen = int(config.trainer.n_gpus_per_node), frozen_gpus(config)
    if found == [] or (found is None and installed is None):
        reason = "CUDA_VISIBLE_DEVICES leaves none" if found == [] else "nvidia-smi does not answer"
        raise LaunchError(
            f"device=cuda, and no GPU is seen ({reason}): install NVIDIA's driver, or run on the CPU with device=cpu"
        )
    if found is not None and frozen and len(found) < wanted + frozen:
        most = len(found) - frozen
        instead = f"trainer.n_gpus_per_node={most}" if most > 0 else "coevolve.executor.gpus=0, and all is on one"
        raise LaunchError(
            f"trainer.n_gpus_per_node={wanted} and coevolve.executor.gpus={frozen} for the frozen policies are "
            f"{wanted + frozen} GPUs, and {len(found)} can be seen: set {instead}"
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
    return None if found is None else min(gpu.memory for gpu in (*found[:wanted], *found[len(found) - frozen :]))


def frozen_gpus(config: DictConfig) -> int:
    """The GPUs that frozen policies have for themselves: none but in rounds."""
    if not OmegaConf.select(config, "coevolve.enable"):
        return 0
    return int(config.coevolve.executor.gpus)


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
    """Whether a module, or one beside it, has `name` as a text in it; read without importing.

    True where the module cannot be found so.
    """
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

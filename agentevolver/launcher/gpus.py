"""The GPUs of this machine and the driver's CUDA, as nvidia-smi tells them, and the CUDA that the installed torch was
built for.

Nothing here imports torch: reading takes milliseconds. What cannot be found out is None, never a guess.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in nvidia-smi's order; None where nvidia-smi does not answer."""
    text = run(["nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.used", "--format=csv,noheader,nounits"])
    return None if text is None else _visible(parse_gpus(text), environment.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(text: str) -> list[Gpu]:
    """Read `--query-gpu=index,uuid,name,memory.total,memory.used --format=csv,noheader,nounits` (MiB); other lines are
    left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdecimal() and cells[3].isdecimal():
            used = int(cells[4]) if cells[4].isdecimal() else 0
            found.append(Gpu(int(cells[0]), cells[1], cells[2], int(cells[3]) << 20, used << 20))
    return found


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
    """The CUDA version that the installed torch was built for, read in its files; None for a build without CUDA, or no
    torch."""
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

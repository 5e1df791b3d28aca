"""What ran: the code's commit and changes, the installed packages, the machine. Written beside the run's results.

One file per launch, `launches/<run id>.json`; beside it the uncommitted changes as `<run id>.diff`, the resolved
configuration as `<run id>.yaml`, and all installed packages in a file that is named by their hash. Secrets are masked,
in the changes too. A fact that cannot be found out is null; recording never stops a run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from agentevolver.utils.files import write_json
from agentevolver.utils.masking import masked_text

SHOWN = ("torch", "vllm", "verl", "ray", "transformers")
MAX_DIFF_BYTES = 2_000_000


class LaunchRecord:
    """The record of one launch; `finish` adds how it ended."""

    def __init__(
        self, experiment_dir: Path, run_id: str, argv: Sequence[str], root: Path, config_text: str = ""
    ) -> None:
        self._path = experiment_dir / "launches" / f"{run_id}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        code, diff = code_state(root)
        pins = installed()
        self._facts: dict[str, Any] = {
            "run_id": run_id,
            "started_at": now(),
            "argv": list(argv),
            "cwd": str(Path.cwd()),
            "code": code,
            "packages": packages(pins),
            "hardware": hardware(),
        }
        if diff:
            patch = masked_text(diff.decode("utf-8", "surrogateescape"))
            self._path.with_suffix(".diff").write_bytes(patch.encode("utf-8", "surrogateescape"))
        if config_text:
            self._path.with_suffix(".yaml").write_text(config_text, encoding="utf-8")
        self._path.with_name(f"packages-{self._facts['packages']['sha256'][:12]}.txt").write_text(
            "\n".join(pins) + "\n", encoding="utf-8"
        )
        self._write()

    def finish(self, exit_code: int) -> None:
        """Add the time and the exit code."""
        self._facts |= {"ended_at": now(), "exit_code": exit_code}
        self._write()

    def _write(self) -> None:
        write_json(self._path, self._facts, indent=2)


def now() -> str:
    """Return the time as ISO 8601, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def code_state(root: Path) -> tuple[dict[str, Any], bytes]:
    """Return commit, whether files differ from it, the untracked ones' names; and the differences as a patch."""
    commit = _run("git", "-C", str(root), "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None, "untracked": []}, b""
    status = (_run("git", "-C", str(root), "status", "--porcelain") or b"").decode(errors="replace").splitlines()
    untracked = [line[3:] for line in status if line.startswith("??")]
    changed = len(untracked) < len(status)
    diff = (_run("git", "-C", str(root), "diff", "HEAD") or b"") if changed else b""
    return {"commit": commit.decode().strip(), "dirty": bool(status), "untracked": untracked}, diff[:MAX_DIFF_BYTES]


def installed() -> list[str]:
    """Return all installed packages, `name==version` each, sorted."""
    return sorted({f"{d.metadata['Name']}=={d.version}".lower() for d in metadata.distributions()})


def packages(found: Sequence[str]) -> dict[str, Any]:
    """Return the versions that matter most of `installed()`, and one hash over all of them."""
    versions = {line.partition("==")[0]: line.partition("==")[2] for line in found}
    shown = {name: versions.get(name) for name in SHOWN}
    return {**shown, "count": len(found), "sha256": hashlib.sha256("\n".join(found).encode()).hexdigest()}


def hardware() -> dict[str, Any]:
    """Return what the run computes on."""
    gpus = (
        _run("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
        if shutil.which("nvidia-smi")
        else None
    )
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(pages * size / 1e9, 1),
        "gpus": gpus.decode(errors="replace").strip().splitlines() if gpus else [],
    }


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _run(*argv: str) -> bytes | None:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

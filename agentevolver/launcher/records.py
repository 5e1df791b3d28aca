"""Records of runs and launches: what runs, so that it can be ended, and what ran, so that it can be reproduced.

A run's record is written before its first process starts, so the guard, the next launch or `--kill` can reap what a
killed launcher left. A launch's record holds the commit, packages and machine, with the uncommitted changes and the
resolved configuration beside it. Secrets are masked. Unknown facts are null; recording never stops a run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentevolver.launcher.logs import keep_worker_logs, unintended_exits
from agentevolver.utils.errors import LaunchError
from agentevolver.utils.files import remove_drafts, write_json
from agentevolver.utils.health import ServiceIdentity
from agentevolver.utils.processes import (
    ProcessId,
    attached,
    boot_id,
    carriers,
    end,
    end_carriers,
    is_plain,
    noted,
    pid_namespace,
    remove_unused,
    send,
    wait_gone,
)
from agentevolver.utils.secrets import masked_text, remove_secrets

TEMP_PREFIX = "ae-"
LAUNCHER_GRACE_S = 45.0
STRAY_GRACE_S = 3.0
# Long, because a launcher grants each service and the job a grace period, one after the other.
STOP_WAIT_S = 240.0


@dataclass(frozen=True)
class Started:
    """Process that the launcher started, under its service's name."""

    name: str
    process: ProcessId


@dataclass(frozen=True)
class RunRecord:
    """Facts needed to find and end every process of a run."""

    run_id: str
    experiment_dir: str
    launcher: ProcessId
    started_at: str
    temp_dir: str | None = None
    dashboard: str | None = None
    started: tuple[Started, ...] = ()
    boot: str = field(default_factory=boot_id)
    host: str = field(default_factory=socket.gethostname)
    pid_namespace: str = field(default_factory=pid_namespace)
    damaged: str = ""
    """Why the file could not be read (then only the run's id is known), else empty."""

    @property
    def here(self) -> bool:
        """Whether the pids belong to this machine or container, since its last boot."""
        return self.host == socket.gethostname() and self.boot == boot_id() and self.pid_namespace == pid_namespace()

    @property
    def rebooted(self) -> bool:
        """Whether this machine was rebooted after the run started, so no process of the run is left."""
        return self.host == socket.gethostname() and self.boot != boot_id()

    @property
    def abandoned(self) -> bool:
        """Whether the launcher is certainly gone without having cleaned up."""
        return self.rebooted or (self.here and not self.damaged and not self.launcher.alive)

    def is_called(self, name: str) -> bool:
        """Whether `name` is the run id, "experiment", "project/experiment" or the folder."""
        folder = Path(self.experiment_dir)
        return name in (self.run_id, folder.name, f"{folder.parent.name}/{folder.name}", str(folder))

    def with_process(self, name: str, process: ProcessId) -> RunRecord:
        """Return the record with the service's new process."""
        return replace(self, started=(*(item for item in self.started if item.name != name), Started(name, process)))

    def running(self) -> set[ProcessId]:
        """Return the running processes, without the launcher."""
        if not self.here:
            return set()
        return {item.process for item in self.started if item.process.alive} | carriers(self.run_id)


@dataclass(frozen=True)
class Cleared:
    """Number of ended processes and bytes of removed shared memory."""

    processes: int = 0
    shared_memory: int = 0

    def __str__(self) -> str:
        memory = f", removed {self.shared_memory / 1e6:.1f} MB of shared memory" if self.shared_memory else ""
        return f"ended {self.processes} processes{memory}"


class RunRegistry:
    """Run records of one checkout, one JSON file for each run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, record: RunRecord) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._path(record.run_id), asdict(record), indent=1)

    def token_path(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.token"

    def secrets_path(self, run_id: str) -> Path:
        """Return the folder of the run's secrets, one file each (`agentevolver.utils.secrets`)."""
        return self.folder / f"{run_id}.secrets"

    def segments_path(self, run_id: str) -> Path:
        """Return the file in which the guard notes the run's shared memory."""
        return self.folder / f"{run_id}.segments"

    def records(self) -> list[RunRecord]:
        """Return the records, oldest first."""
        return [_read(path) for path in sorted(self.folder.glob("*.json")) if path.is_file()]

    def of_run(self, run_id: str) -> RunRecord | None:
        """Return the run's record, or None if the run has ended."""
        path = self._path(run_id)
        return _read(path) if path.exists() else None

    def serving(self, url: str, identity: ServiceIdentity | None) -> RunRecord | None:
        """Return the run of this checkout whose process serves the URL, or None.

        Args:
            identity: answer of the URL's health route.
        """
        launch_id = identity.launch_id if identity is not None else None
        record = self.of_run(launch_id) if launch_id is not None and launch_id == Path(launch_id).name else None
        if record is None or not record.here:
            return None
        # A launch id alone could be stale: the process with this port must still run.
        option = f"--port={urlsplit(url).port or 80}".encode()
        return record if any(option in item.process.arguments() for item in record.started) else None

    def stop(self, record: RunRecord, timeout_s: float = STOP_WAIT_S) -> bool:
        """Stop a run in order, as Ctrl-C does, and wait for its launcher. Return False if the launcher is gone.

        Raises:
            LaunchError: the run is still stopping after `timeout_s` seconds. Nothing was killed.
        """
        if not (record.here and record.launcher.alive):
            return False
        send(record.launcher, signal.SIGTERM)
        if wait_gone({record.launcher}, timeout_s):
            raise LaunchError(f"run {record.run_id} is still stopping after {timeout_s:g} s; --kill ends it at once")
        return True

    def reap(self, record: RunRecord) -> Cleared:
        """End what a run left, and remove its shared memory, temporary folder, secrets and record.

        Raises:
            LaunchError: a process survives SIGKILL (it hangs in the kernel).
        """
        cleared, temp_dir = Cleared(), None if record.temp_dir is None else Path(record.temp_dir)
        exits = unintended_exits(temp_dir) if temp_dir is not None else {}
        if record.here:
            cleared = self._end(record)
        elif not record.rebooted:
            return cleared
        if temp_dir is not None:
            if not record.damaged:
                keep_worker_logs(temp_dir, exits, Path(record.experiment_dir) / "logs" / "workers" / record.run_id)
            remove_temp_dir(temp_dir)
        self.forget(record.run_id)
        return cleared

    def _end(self, record: RunRecord) -> Cleared:
        launcher = {record.launcher} if record.launcher.alive else set()
        started = {item.process for item in record.started if item.process.alive}
        processes, segments = launcher | started | carriers(record.run_id), attached(record.run_id)
        left = end(launcher, LAUNCHER_GRACE_S)
        left |= end(started, STRAY_GRACE_S) | end_carriers(record.run_id, STRAY_GRACE_S)
        if left:
            pids = ", ".join(str(process.pid) for process in sorted(left, key=lambda process: process.pid))
            raise LaunchError(
                f"run {record.run_id}: process {pids} does not end even on SIGKILL; it hangs in the kernel"
            )
        return Cleared(len(processes), remove_unused(segments | noted(self.segments_path(record.run_id))))

    def forget(self, run_id: str) -> None:
        """Remove the files of an ended run, drafts included."""
        remove_secrets(self.secrets_path(run_id))
        for path in (self.token_path(run_id), self.segments_path(run_id), self._path(run_id)):
            remove_drafts(path)
            path.unlink(missing_ok=True)

    def _path(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.json"


@contextmanager
def experiment_lock(experiment_dir: Path, registry: RunRegistry) -> Iterator[None]:
    """Lock an experiment's folder for one launcher.

    Raises:
        LaunchError: another launcher holds the lock.
    """
    experiment_dir.mkdir(parents=True, exist_ok=True)
    with (experiment_dir / ".launcher.lock").open("w") as file:
        try:
            # A lock of the kernel: it ends with its holder, even if that is killed.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            folder = str(experiment_dir.resolve())
            mine = [record.launcher for record in registry.records() if record.experiment_dir == folder]
            pids = [launcher.pid for launcher in mine if launcher.alive]
            holder = f"the launcher with pid {pids[0]}" if pids else "another launcher"
            raise LaunchError(
                f"{experiment_dir} is in use by {holder}: stop that one (Ctrl-C there, or --kill), "
                "or give this run a name of its own with trainer.experiment_name=NAME"
            ) from error
        yield


def temp_dir_for(run_id: str) -> Path:
    """Return the temporary folder of all processes of a run."""
    # A short path: on Linux the path of a Unix socket has at most 107 bytes. A plain one: Ray pastes it into commands.
    parent = tempfile.gettempdir()
    return Path(parent if len(parent) <= 16 and is_plain(parent) else "/tmp") / f"{TEMP_PREFIX}{run_id}"


def remove_temp_dir(folder: Path) -> None:
    """Remove a run's temporary folder. Any other folder is left alone."""
    if (
        folder.name.startswith(TEMP_PREFIX)
        and folder.is_dir()
        and not folder.is_symlink()
        and folder.stat().st_uid == os.getuid()
    ):
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> RunRecord:
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        raw["launcher"] = _process(raw["launcher"])
        raw["started"] = tuple(Started(str(item["name"]), _process(item["process"])) for item in raw["started"])
        record = RunRecord(**raw)
        if record.run_id != path.stem or not isinstance(record.experiment_dir, str):
            raise ValueError(f"it names another run, {record.run_id}")
        return record
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"{path} cannot be read ({type(error).__name__}: {error})"
        temp_dir = str(temp_dir_for(path.stem))
        return RunRecord(path.stem, "?", ProcessId(0, -1), "?", temp_dir=temp_dir, damaged=reason)


def _process(raw: dict[str, Any]) -> ProcessId:
    return ProcessId(pid=int(raw["pid"]), start_ticks=int(raw["start_ticks"]))


SHOWN = ("torch", "vllm", "verl", "ray", "transformers")
MAX_DIFF_BYTES = 2_000_000


class LaunchRecord:
    """Provenance of one launch: code, packages, machine and configuration."""

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
        self._facts |= {"ended_at": now(), "exit_code": exit_code}
        self._write()

    def _write(self) -> None:
        write_json(self._path, self._facts, indent=2)


def now() -> str:
    """Return the current time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def code_state(root: Path) -> tuple[dict[str, Any], bytes]:
    """Return (commit, whether files differ, names of untracked files) as a dict, and the diff as a patch."""
    commit = _run("git", "-C", str(root), "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None, "untracked": []}, b""
    status = (_run("git", "-C", str(root), "status", "--porcelain") or b"").decode(errors="replace").splitlines()
    untracked = [line[3:] for line in status if line.startswith("??")]
    changed = len(untracked) < len(status)
    diff = (_run("git", "-C", str(root), "diff", "HEAD") or b"") if changed else b""
    return {"commit": commit.decode().strip(), "dirty": bool(status), "untracked": untracked}, diff[:MAX_DIFF_BYTES]


def installed() -> list[str]:
    """Return all installed packages as sorted "name==version"."""
    return sorted({f"{d.metadata['Name']}=={d.version}".lower() for d in metadata.distributions()})


def packages(found: Sequence[str]) -> dict[str, Any]:
    """Return the versions of the packages in SHOWN, and a hash over all of `found`."""
    versions = {line.partition("==")[0]: line.partition("==")[2] for line in found}
    shown = {name: versions.get(name) for name in SHOWN}
    return {**shown, "count": len(found), "sha256": hashlib.sha256("\n".join(found).encode()).hexdigest()}


def hardware() -> dict[str, Any]:
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

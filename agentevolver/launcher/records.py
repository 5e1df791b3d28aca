"""What launchers of this checkout have started: one JSON file per run under `.agentevolver/run/`, and a lock per experiment.

A run's file is there before its first process is, so that a launcher killed at any moment leaves enough to find everything again
(`reap`). Files are replaced atomically. A lock is the kernel's (flock): it ends with its holder, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agentevolver.launcher.errors import LaunchError
from agentevolver.launcher.worker_logs import keep_worker_logs, unintended_exits
from agentevolver.utils.files import write_json
from agentevolver.utils.processes import ProcessId, boot_id, carriers, end, end_carriers, send, wait_gone
from agentevolver.utils.secrets import remove_secrets
from agentevolver.utils.shared_memory import attached, remove_unused

TEMP_PREFIX = "ae-"
LAUNCHER_GRACE_S = 45.0
STRAY_GRACE_S = 3.0
# A launcher gives its services and its job their own graces, one after the other.
STOP_WAIT_S = 240.0


@dataclass(frozen=True)
class Started:
    """One process that a launcher started, by the service's name."""

    name: str
    process: ProcessId


@dataclass(frozen=True)
class RunRecord:
    """What is needed to find and end everything of one run."""

    run_id: str
    experiment_dir: str
    launcher: ProcessId
    started_at: str
    temp_dir: str | None = None
    dashboard: str | None = None
    started: tuple[Started, ...] = ()
    boot: str = field(default_factory=boot_id)
    host: str = field(default_factory=socket.gethostname)

    @property
    def here(self) -> bool:
        """Whether its pids are pids of this machine since its last start."""
        return self.host == socket.gethostname() and self.boot == boot_id()

    def is_called(self, name: str) -> bool:
        """Whether a person may mean it by this name: of the run, the experiment, or project/experiment."""
        folder = Path(self.experiment_dir)
        return name in (self.run_id, folder.name, f"{folder.parent.name}/{folder.name}", str(folder))

    def with_process(self, name: str, process: ProcessId) -> RunRecord:
        """Return the record with the service's present process."""
        return replace(self, started=(*(item for item in self.started if item.name != name), Started(name, process)))

    def running(self) -> set[ProcessId]:
        """Return its processes that still run, the launcher itself left out."""
        if not self.here:
            return set()
        return {item.process for item in self.started if item.process.alive} | carriers(self.run_id)


class RunRegistry:
    """The records of one checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, record: RunRecord) -> None:
        """Store or replace a run's record."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self._path(record.run_id), asdict(record), indent=1)

    def remove(self, run_id: str) -> None:
        """Forget a run."""
        self._path(run_id).unlink(missing_ok=True)

    def token_path(self, run_id: str) -> Path:
        """Where the run's Ray token lies, readable by its owner alone."""
        return self.folder / f"{run_id}.token"

    def secrets_path(self, run_id: str) -> Path:
        """Where the run's other secrets lie, one file each (`agentevolver.utils.secrets`)."""
        return self.folder / f"{run_id}.secrets"

    def records(self) -> list[RunRecord]:
        """Return the records that can be read, oldest first.

        Raises:
            LaunchError: a file is there and is not a record.
        """
        return [_read(path) for path in sorted(self.folder.glob("*.json"))]

    def of_experiment(self, experiment_dir: Path) -> list[RunRecord]:
        """Return the records of runs that wrote into this folder."""
        return [record for record in self.records() if record.experiment_dir == str(experiment_dir.resolve())]

    def server_on(self, port: int) -> RunRecord | None:
        """Return the run whose environment service was started on this port and still runs."""
        option = f"--port={port}".encode()
        for record in self.records():
            if any(option in item.process.arguments() for item in record.started if record.here):
                return record
        return None

    def stop(self, record: RunRecord, timeout_s: float = STOP_WAIT_S) -> bool:
        """Ask a run's launcher to stop everything in order, as Ctrl-C does, and wait for it; False if there is no launcher to ask.

        Raises:
            LaunchError: it is not done within `timeout_s` seconds. Nothing was killed.
        """
        if not (record.here and record.launcher.alive):
            return False
        send(record.launcher, signal.SIGTERM)
        if wait_gone({record.launcher}, timeout_s):
            raise LaunchError(f"run {record.run_id} is still stopping after {timeout_s:g} s; --kill ends it at once")
        return True

    def reap(self, record: RunRecord) -> int:
        """End what a run left, remove its temporary folder and its record; returns how many processes it ended.

        Raises:
            LaunchError: a process outlives SIGKILL (it hangs in the kernel).
        """
        ended = 0
        exits = unintended_exits(Path(record.temp_dir)) if record.temp_dir is not None else {}
        if record.here:
            processes = record.running() | ({record.launcher} if record.launcher.alive else set())
            ended = len(processes)
            segments = attached(record.run_id)
            left = end({record.launcher}, LAUNCHER_GRACE_S)
            left |= end({item.process for item in record.started}, STRAY_GRACE_S) | end_carriers(record.run_id, STRAY_GRACE_S)
            if left:
                pids = ", ".join(str(process.pid) for process in sorted(left, key=lambda process: process.pid))
                raise LaunchError(f"run {record.run_id}: process {pids} does not end even on SIGKILL; it hangs in the kernel")
            remove_unused(segments)
        elif record.host != socket.gethostname():
            return 0
        if record.temp_dir is not None:
            keep_worker_logs(Path(record.temp_dir), exits, Path(record.experiment_dir) / "logs" / "workers" / record.run_id)
            remove_temp_dir(Path(record.temp_dir))
        self.token_path(record.run_id).unlink(missing_ok=True)
        remove_secrets(self.secrets_path(record.run_id))
        self.remove(record.run_id)
        return ended

    def _path(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.json"


@contextmanager
def experiment_lock(experiment_dir: Path, registry: RunRegistry) -> Iterator[None]:
    """Hold an experiment's folder for one launcher.

    Raises:
        LaunchError: another launcher holds it, or one that was killed left processes that write there.
    """
    experiment_dir.mkdir(parents=True, exist_ok=True)
    with (experiment_dir / ".launcher.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pids = [str(record.launcher.pid) for record in registry.of_experiment(experiment_dir) if record.launcher.alive]
            holder = f"the launcher with pid {pids[0]}" if pids else "another launcher"
            raise LaunchError(
                f"{experiment_dir} is in use by {holder}: stop that one (Ctrl-C there, or --kill), "
                "or give this run a name of its own with trainer.experiment_name=NAME"
            ) from error
        for record in registry.of_experiment(experiment_dir):
            if running := record.running():
                raise LaunchError(
                    f"{experiment_dir} is still written to by {len(running)} processes of run {record.run_id}, whose launcher was killed: "
                    "end them with `python launcher.py --kill`"
                )
        yield


def temp_dir_for(run_id: str) -> Path:
    """Return where all processes of a run keep temporary files; short, because the path of a socket in it may have 107 bytes."""
    parent = tempfile.gettempdir()
    return Path(parent if len(parent) <= 16 else "/tmp") / f"{TEMP_PREFIX}{run_id}"


def remove_temp_dir(folder: Path) -> None:
    """Remove a run's temporary folder; anything that is not one is left alone."""
    if folder.name.startswith(TEMP_PREFIX) and folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> RunRecord:
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        raw["launcher"] = ProcessId(**raw["launcher"])
        raw["started"] = tuple(Started(item["name"], ProcessId(**item["process"])) for item in raw["started"])
        return RunRecord(**raw)
    except (ValueError, TypeError, KeyError) as error:
        raise LaunchError(f"{path} is not a run's record ({error}): look what it is, and remove it") from error

"""Load of the machine, the run's processes, and its logs as they grow."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import psutil

from agentevolver.utils.secrets import masked_text
from agentevolver.view.experiment import Experiment, NotThere

KEPT = 900
EVERY_S = 1.0
LARGEST = 12
GB = 1e9


class System:
    """Samples of this machine, taken whenever somebody looks, once a second at most."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._lock = threading.Lock()
        self._samples: deque[dict[str, float]] = deque(maxlen=KEPT)
        self._processes: dict[int, psutil.Process] = {}
        self._times = psutil.cpu_times()

    def read(self, since: float = 0.0) -> dict[str, Any]:
        """Return `{samples, cpus, memory_gb, disk, load, processes}`.

        Samples (`time` in Unix seconds, `cpu` in percent of all cores, `memory` in GB) are those after `since`;
        `processes` are those of the run on this machine with their `cpu` (percent of one core since the last look) and
        `memory`, the largest first.
        """
        with self._lock:
            now = time.time()
            memory = psutil.virtual_memory()
            if not self._samples or now - self._samples[-1]["time"] >= EVERY_S:
                self._samples.append(
                    {"time": now, "cpu": self._busy(), "memory": (memory.total - memory.available) / GB}
                )
            disk = psutil.disk_usage(str(self._experiment.folder))
            processes = self._run_processes()
            return {
                "samples": [sample for sample in self._samples if sample["time"] > since],
                "cpus": psutil.cpu_count() or 1,
                "memory_gb": memory.total / GB,
                "load": list(os.getloadavg()),
                "disk": {"free_gb": disk.free / GB, "total_gb": disk.total / GB},
                "processes": processes[:LARGEST],
                "process_count": len(processes),
                "process_memory_gb": sum(process["memory"] for process in processes),
            }

    def _busy(self) -> float:
        """Return the busy share of all cores since the last call, in percent.

        psutil's own counts for each thread apart.
        """
        before, self._times = self._times, psutil.cpu_times()
        spent = {
            name: getattr(self._times, name) - getattr(before, name)
            for name in ("user", "nice", "system", "irq", "softirq", "steal")
        }
        idle = self._times.idle - before.idle + self._times.iowait - before.iowait
        busy = sum(spent.values())
        return 100.0 * busy / (busy + idle) if busy + idle > 0 else 0.0

    def _run_processes(self) -> list[dict[str, Any]]:
        pids = {process.pid for process in self._experiment.processes()}
        self._processes = {pid: process for pid, process in self._processes.items() if pid in pids}
        found = []
        for pid in pids:
            try:
                process = self._processes.setdefault(pid, psutil.Process(pid))
                with process.oneshot():
                    memory = process.memory_info().rss / GB
                    found.append({"pid": pid, "name": _name(process), "cpu": process.cpu_percent(), "memory": memory})
            except psutil.Error:
                self._processes.pop(pid, None)
        return sorted(found, key=lambda process: -float(process["memory"]))


def _name(process: psutil.Process) -> str:
    """Return what a process calls itself (Ray's workers do), or the module that it runs.

    Never its whole command line.
    """
    line = process.cmdline()
    if not line:
        return process.name()
    if "-m" in line[:-1]:
        return line[line.index("-m") + 1]
    return line[0].split()[0] if line[0].startswith("ray::") else process.name()


# The beginning of a long log is not sent; so much of its end is, and so much in one answer after that.
TAIL_BYTES = 64 * 1024
CHUNK_BYTES = 256 * 1024
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Logs:
    """The files of a folder that end in `.log`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def files(self) -> list[dict[str, Any]]:
        """Return name, size and time of each, those that were written last first."""
        found = []
        for path in self._folder.glob("*.log") if self._folder.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                found.append({"name": path.name, "size": stat.st_size, "modified": stat.st_mtime})
        return sorted(found, key=lambda file: -float(file["modified"]))

    def read(self, name: str, offset: int | None = None) -> dict[str, Any]:
        """Return a log's whole lines from a byte offset, without colours, what a progress bar overwrote, and secrets.

        Args:
            name: as in `files`; anything else is not there.
            offset: None: near the end. One beyond the end (the file is a new one) is the end of what there is.

        Returns:
            `{text, start, next, size}`: `start` is where the text really begins, `next` what to ask for next.

        Raises:
            NotThere
        """
        if name not in {str(file["name"]) for file in self.files()}:
            raise NotThere(f"there is no log {name!r}")
        with (self._folder / name).open("rb") as file:
            size = file.seek(0, 2)
            fresh = offset is None or offset > size
            start = max(0, size - TAIL_BYTES) if fresh or offset is None else offset
            file.seek(start)
            raw = file.read(TAIL_BYTES if fresh else CHUNK_BYTES)
        if fresh and start:
            cut = raw.find(b"\n") + 1
            start, raw = start + cut, raw[cut:]
        whole = raw.rfind(b"\n") + 1
        if whole == 0 and len(raw) < CHUNK_BYTES:
            raw = b""
        elif whole:
            raw = raw[:whole]
        return {
            "text": masked_text(_plain(raw.decode("utf-8", "replace"))),
            "start": start,
            "next": start + len(raw),
            "size": size,
        }


def _plain(text: str) -> str:
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)

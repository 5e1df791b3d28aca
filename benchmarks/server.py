"""A server process for benchmarks, and the CPU time of its process tree."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = str(Path(__file__).resolve().parents[1])


@contextmanager
def server(*arguments: str) -> Iterator[tuple[str, psutil.Process]]:
    """Start a server process, wait until it is healthy, and stop it at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {**os.environ, "PYTHONPATH": ROOT, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    environ.pop("ENV_SERVICE_TOKEN", None)
    process = subprocess.Popen(
        [sys.executable, *(a.replace("PORT", str(port)) for a in arguments)], cwd=ROOT, env=environ
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                if urllib.request.urlopen(f"{url}/healthz", timeout=2).status == 200:
                    break
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.25)
        else:
            raise RuntimeError(f"{arguments} did not become healthy")
        time.sleep(2.0)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process tree, ended and reaped children included."""
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total

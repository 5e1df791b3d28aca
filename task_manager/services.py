"""Starts the services that a questioning run needs and nobody started: the environment service and the offline teacher.

For use without the launcher. A service that answers already is left alone; what is started here is stopped at the end, whatever happens.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from task_manager.configuration import Configuration

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


class ServiceFailed(RuntimeError):
    """A service did not come up; the message ends with the tail of its log."""


@contextlib.contextmanager
def running(configuration: Configuration, logs: Path) -> Iterator[None]:
    """Run what the configuration needs; output goes to files in `logs`. Raises ServiceFailed."""
    with contextlib.ExitStack() as stack:
        for name, health_url, arguments in _needed(configuration):
            if not _answers(health_url):
                stack.enter_context(_started(name, health_url, arguments, logs))
        yield


def _needed(configuration: Configuration) -> list[tuple[str, str, list[str]]]:
    service = configuration.env_service
    parts = urlsplit(service.env_url)
    arguments = ["-m", "env_service", "serve", "--env", service.env_type, "--host", str(parts.hostname), "--port", str(parts.port or 80)]
    needed = [("env_service", service.env_url.rstrip("/") + "/healthz", [*arguments, "--shared-hosts", "1"])]
    if configuration.llm.needs_teacher:
        teacher = configuration.llm.teacher
        needed.append(("teacher", teacher.health_url, teacher.arguments()))
    return needed


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status) == 200
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def _started(name: str, health_url: str, arguments: list[str], logs: Path) -> Iterator[None]:
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{name}.log"
    with path.open("ab") as output:
        process = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(health_url):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = path.read_bytes()[-2000:].decode("utf-8", "replace")
                raise ServiceFailed(f"{name} did not answer at {health_url}; its log {path} ends with:\n{tail}")
            time.sleep(0.2)
        yield
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, then end its whole group."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        logger.warning("process %d does not end, killing its group", process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

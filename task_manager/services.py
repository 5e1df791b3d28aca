"""Starts a command's services (environment service, offline teacher) without the launcher.

They stop at the end, or with this process if it is killed. A service that already answers is used only if
`env_service.external` is set.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from agentevolver.utils.health import ServiceIdentity, read_identity
from agentevolver.utils.processes import RUN_ID, die_with_parent
from env_service.parameters import paths_in
from task_manager.settings import QuestioningConfiguration

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
# As the environment's client, which knows no proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServiceFailed(RuntimeError):
    """A service did not start, or another process uses its port. The message holds the end of the log."""


@contextlib.contextmanager
def running(configuration: QuestioningConfiguration, logs: Path) -> Iterator[None]:
    """Run the services of a configuration, with logs in `logs`. Raises ServiceFailed."""
    with contextlib.ExitStack() as stack:
        for name, health_url, arguments in _needed(configuration):
            answers, identity = _ask(health_url)
            if answers and not (name == "env_service" and configuration.env_service.external):
                who = identity or "something that does not identify itself"
                key = "env_service.env_url" if name == "env_service" else "llm.teacher.url"
                raise ServiceFailed(
                    f"{health_url} is answered by {who}: choose another port with {key}, "
                    "or use what runs there by leaving out --with-services"
                )
            if not answers:
                stack.enter_context(started(name, health_url, arguments, logs))
        yield


def _needed(configuration: QuestioningConfiguration) -> list[tuple[str, str, list[str]]]:
    service = configuration.env_service
    parts = urlsplit(service.env_url)
    arguments = ["-m", "env_service", "serve", f"--env={service.env_type}", "--shared-hosts=1"]
    arguments += [f"--host={parts.hostname}", f"--port={parts.port or 80}"]
    arguments += [f"--path={path}" for path in paths_in([service.env_params, configuration.data.model_dump()])]
    needed = [("env_service", service.env_url.rstrip("/") + "/healthz", arguments)]
    if configuration.llm.needs_teacher:
        teacher = configuration.llm.teacher
        needed.append(("teacher", teacher.health_url, teacher.arguments()))
    return needed


def _ask(url: str) -> tuple[bool, ServiceIdentity | None]:
    try:
        request = urllib.request.Request(url, headers={"accept": "application/json"})
        with _DIRECT.open(request, timeout=5) as response:
            return int(response.status) == 200, read_identity(json.loads(response.read()))
    except OSError:
        return False, None
    except (ValueError, HTTPException):
        # Another program listens on the port.
        return True, None


def _is_up(url: str, launch_id: str) -> bool:
    answers, identity = _ask(url)
    return answers and identity is not None and identity.launch_id == launch_id


@contextlib.contextmanager
def started(name: str, health_url: str, arguments: list[str], logs: Path) -> Iterator[None]:
    """Run `python ARGUMENT ...` while the block runs, logging to a file in `logs`. Raises ServiceFailed."""
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{name}.log"
    launch_id = f"{name}-{secrets.token_hex(4)}"
    with path.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, RUN_ID: launch_id},
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _is_up(health_url, launch_id):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = path.read_bytes()[-2000:].decode("utf-8", "replace")
                raise ServiceFailed(f"{name} did not answer at {health_url}; its log {path} ends with:\n{tail}")
            time.sleep(0.2)
        yield
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        logger.warning("process %d does not end, killing its group", process.pid)
    # Its children too: workers may outlive the server.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

"""A service process on Ray, as the command line starts it, and a count of everything that belongs to it."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from env_service.client import EnvClient
from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
BOTH = ["--env", "counter", "--env-module", "counter=counter_envs:Counter"]
BOTH += ["--env", "lonely", "--env-module", "lonely=counter_envs:SteadyLonelyCounter"]
LEAK_WAIT_S = 20.0
RAYS_OWN_AGENTS = ("DashboardAgent", "RuntimeEnvAgent")
RAYS_OWN = (
    "/gcs_server",
    "/raylet",
    "monitor.py",
    "ray/dashboard/",
    "ray/_private/",
    "ray::IDLE",
    *(f"ray::{agent}" for agent in RAYS_OWN_AGENTS),
)
"""Parts of the command lines of what Ray itself starts, some of it late, some of it ahead of demand."""
CANARY = "a-key-that-no-process-of-a-service-may-carry"
MARK = "ENV_SERVICE_TEST_RUN"


class Served:
    """A service process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: int, mark: str) -> None:
        self.process = process
        self.mark = mark
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    def logged(self) -> str:
        """Return what the service has written to standard error."""
        return os.pread(self._log, os.fstat(self._log).st_size, 0).decode("utf-8", "replace")

    def family(self) -> list[psutil.Process]:
        """Return every process below the service that lives."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_until_healthy(self, timeout_s: float = 90) -> None:
        """Wait for /healthz; an answer before that must be 503, never an error of the connection once it listens."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.logged()
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(f"{self.url}/healthz", timeout=5).read() == b"OK":
                    return
            time.sleep(0.1)
        raise AssertionError(f"the service did not become healthy:\n{self.logged()}")


class Census(NamedTuple):
    """What a service holds: counted before a fault and after it, these must be equal."""

    instances: int
    actors: int
    processes: int
    ports: int
    files: int


def census(served: Served) -> Census:
    """Count instances, Ray actors, processes but Ray's own ones, ports they listen on, and the service's open files.

    Processes that have left the service's family are found by a variable that they have inherited.
    """
    listing = json.loads(urllib.request.urlopen(f"{served.url}/instances", timeout=30).read())
    service = psutil.Process(served.process.pid)
    marked = [p for p in psutil.process_iter() if environment_of(p).get(MARK) == served.mark and p != service]
    commands = {p: command_of(p) for p in {*service.children(recursive=True), *marked}}
    members = [p for p, command in commands.items() if command and not is_rays_own(command)]
    # Ray connects to itself once more whenever it wants to.
    tcp = service.net_connections("tcp")
    of_ray = [one for one in tcp if one.status == psutil.CONN_ESTABLISHED and one.laddr.port != served.port]
    return Census(
        instances=len(listing["data"]),
        actors=sum("ray::Host" in commands[p] for p in members),
        processes=len(members),
        ports=sum(listening(p) for p in [service, *members]),
        files=service.num_fds() - len(of_ray),
    )


def listening(process: psutil.Process) -> int:
    """Return how many TCP ports a process listens on; none if it has ended."""
    try:
        return sum(connection.status == psutil.CONN_LISTEN for connection in process.net_connections("tcp"))
    except psutil.Error:
        return 0


def settled(served: Served, quiet_s: float = 0.6) -> Census:
    """Return the count once it has not changed for a while: what replaced something that ended may still be
    starting."""
    last, since = census(served), time.monotonic()
    while time.monotonic() - since < quiet_s:
        time.sleep(0.1)
        now = census(served)
        if now != last:
            last, since = now, time.monotonic()
    return last


@contextlib.contextmanager
def leaking_nothing(served: Served) -> Iterator[None]:
    """Count what the service holds before the block, and wait after it until that is all again."""
    gc.collect()  # connections of clients that are garbage here are still open there
    before = settled(served)
    assert before.instances == 0
    yield
    gc.collect()
    deadline = time.monotonic() + LEAK_WAIT_S
    while (after := census(served)) != before:
        assert time.monotonic() < deadline, (before, after)
        time.sleep(0.1)


def command_of(process: psutil.Process) -> str:
    """Return a process's command line, empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def is_rays_own(command: str) -> bool:
    """Whether a command line is Ray's; that of our processes holds a search path with Ray's folders in it."""
    return "env_service.hosting.forkserver" not in command and any(name in command for name in RAYS_OWN)


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return a process's variables, none if it has ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def start(port: int, *options: str) -> Served:
    """Start a service without waiting for it."""
    mark = secrets.token_hex(8)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}", MARK: mark}
    environ.pop("ENV_SERVICE_TOKEN", None)
    environ["SOME_API_KEY"] = CANARY
    command = [sys.executable, "-m", "env_service", "serve", "--port", str(port), *options]
    log = os.memfd_create("log")  # a pipe that nobody reads would stop a service that has much to say
    return Served(
        subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=log), port, log, mark
    )


def stop(served: Served) -> str:
    """Stop a service with SIGTERM; returns what it logged."""
    served.process.send_signal(signal.SIGTERM)
    served.process.wait(60)
    return served.logged()


@contextlib.contextmanager
def served_alone(name: str) -> Iterator[EnvClient]:
    """Serve one environment of this repository and yield a client."""
    service = start(free_port(), "--env", name, "--shared-hosts", "1")
    try:
        service.wait_until_healthy(120)
        with EnvClient(service.url, timeout_s=60.0) as client:
            yield client
    finally:
        stop(service)


def all_gone(family: list[psutil.Process], but: tuple[str, ...] = ()) -> bool:
    """Whether every process has ended (zombies of a dead parent count as ended)."""
    commands = [command_of(p) for p in family]
    return not [command for command in commands if command and not any(name in command for name in but)]


def folders_of(served: Served) -> list[Path]:
    return list(Path("/tmp").glob(f"env_service-{served.process.pid}-*"))


async def open_instances(http: Any) -> list[dict[str, Any]]:
    return list(json.loads((await http.get("/instances"))[1])["data"])

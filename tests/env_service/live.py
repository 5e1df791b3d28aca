"""Helper: a real service on loopback for the length of a `with` block."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from env_service.client import EnvClient
from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0


@contextlib.contextmanager
def serving(name: str, spec: str, log: Path) -> Iterator[EnvClient]:
    """Serve one environment class under a name and yield a client; the service's own output goes to `log`."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "env_service",
        "serve",
        "--env",
        name,
        "--env-module",
        f"{name}={spec}",
        "--port",
        str(port),
    ]
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--shared-hosts", "1"], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            with EnvClient(f"http://127.0.0.1:{port}", timeout_s=60.0) as client:
                _wait_until_ready(client, process, log)
                yield client
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(client: EnvClient, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not client.health():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the service did not come up:\n{log.read_text()[-4000:]}")
        time.sleep(0.3)

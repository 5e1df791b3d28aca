"""The real server, as a person starts it."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.agentevolver.view.runs import make_run

ROOT = Path(__file__).parents[3]
LAUNCHER = (sys.executable, str(ROOT / "launcher.py"))
PATHS = ("/../../config.yaml", "/views/../../../config.yaml", "//config.yaml", "/static/%2e%2e/app.py")
PATHS += ("/..%2fconfig.yaml", "/..%5capp.py", "/api/logs/..%2f..%2fconfig.yaml", "/api/logs/..%00")
pytestmark = pytest.mark.service


@contextmanager
def serving(run: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A launcher that shows a run, and the address it printed."""
    with subprocess.Popen([*LAUNCHER, "--view", str(run)], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"watch .+ at (http://\S+)", line)
            assert found, line + process.stderr.read()
            address = found[1]
            httpx.get(address + "healthz", trust_env=False).raise_for_status()  # at once
            yield process, address
        finally:
            process.kill()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("experiments") / "pocket" / "demo")


def test_ctrl_c_is_how_one_leaves(run: Path) -> None:
    with serving(run) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=address, trust_env=False) as client:
            assert client.get("/api/state").json()["name"] == "pocket/demo"
            assert "<title>AgentEvolver" in client.get("/").text
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_a_path_that_a_client_would_mend_leads_nowhere_either(run: Path) -> None:
    with serving(run) as (_, address):
        port = address.rstrip("/").rpartition(":")[2]
        for path in PATHS:
            done = subprocess.run(
                ["curl", "-s", "--noproxy", "*", "--path-as-is", f"http://127.0.0.1:{port}{path}"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert '"detail"' in done.stdout and "sk-secret" not in done.stdout

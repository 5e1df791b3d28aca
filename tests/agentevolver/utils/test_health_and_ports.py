"""A probe answers with a reason and never with an exception; a port is given to one launcher only."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentevolver.utils import net
from agentevolver.utils.health import all_unhealthy, reachable, unhealthy
from tests.agentevolver.launcher.fakes import release_ports
from tests.answers import answering
from tests.free_ports import free_port

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def no_reservation_outlives_its_test() -> Iterator[None]:
    yield
    release_ports()


@pytest.fixture
def server() -> Iterator[str]:
    replies = {"/well": (200, b"OK"), "/ill": (503, b"no host\n has come up yet")}
    with answering(lambda asked: replies[asked.path]) as url:
        yield url


async def test_the_reason_holds_what_the_service_says(server: str) -> None:
    assert await unhealthy(f"{server}/ill") == "HTTP 503 no host has come up yet"
    assert await all_unhealthy((f"{server}/well", f"{server}/ill")) == "HTTP 503 no host has come up yet"


async def test_nobody_there_is_a_reason() -> None:
    assert await unhealthy(f"http://127.0.0.1:{free_port()}/healthz") == "connection refused"


async def test_silence_is_given_up_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert (
            await unhealthy(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.2) == "no answer within 0.2 s"
        )
        assert await reachable("127.0.0.1", silent.getsockname()[1])
    assert not await reachable("127.0.0.1", free_port())


async def test_a_proxy_does_not_stand_between_processes_of_one_machine(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert await unhealthy(f"{server}/well") is None


def test_a_port_in_use_is_not_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not net.port_is_free(port)
        found = net.take_port_from(port)
        assert found is not None and found > port
        assert net.take_port_from(port, tries=1) is None


def test_a_port_that_one_launcher_chose_is_not_chosen_by_another() -> None:
    port = net.take_any_port()
    code = f"from agentevolver.utils.net import reserve; print(reserve({port}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == "False\n"
    assert net.take_port_from(port) != port


def test_a_reservation_ends_with_its_process() -> None:
    port = free_port()
    code = f"from agentevolver.utils.net import reserve; print(reserve({port}))"
    for _ in range(2):
        assert (
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
        )

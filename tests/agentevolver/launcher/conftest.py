"""Launches that end with their test."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentevolver.launcher.stack import JobSpec, ServiceSpec
from tests.agentevolver.launcher.fakes import Launch, release_ports

Launcher = Callable[..., Launch]


@pytest.fixture(autouse=True)
def no_reservation_outlives_its_test() -> Iterator[None]:
    yield
    release_ports()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """Start a launcher on a plan: `launch(service, ..., job=...)`."""
    started: list[Launch] = []

    def start(*services: ServiceSpec, job: JobSpec | None = None) -> Launch:
        started.append(Launch(tmp_path, secrets.token_hex(4), services, job))
        return started[-1]

    yield start
    for one in started:
        one.clean()

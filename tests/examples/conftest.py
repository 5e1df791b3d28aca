"""Plans reserve ports."""

from collections.abc import Iterator

import pytest

from tests.agentevolver.launcher.fakes import release_ports


@pytest.fixture(autouse=True)
def no_reservation_outlives_its_test() -> Iterator[None]:
    yield
    release_ports()

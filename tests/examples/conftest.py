"""Plans reserve ports until their process ends; a test's process goes on."""

from collections.abc import Iterator

import pytest

from agentevolver.launcher import ports


@pytest.fixture(autouse=True)
def no_reservation_outlives_its_test() -> Iterator[None]:
    yield
    for holder in ports._reserved.values():
        holder.close()
    ports._reserved.clear()

"""Skips this folder, with the reason, where scienceworld or Java is missing; ends the Java process behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from env_service.environments.scienceworld.simulator import SETUP, Simulator, installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if installed():
        return
    for item in items:
        if here in item.path.parents and "without_the_package" not in item.name:
            item.add_marker(pytest.mark.skip(reason=f"scienceworld or Java is not installed; run `{SETUP}`"))


@pytest.fixture(autouse=True, scope="session")
def java() -> Iterator[None]:
    """One Java process for all of these tests."""
    yield
    if Simulator._one is not None:
        Simulator._one.stop()

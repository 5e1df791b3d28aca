"""Skips this folder, with the reason, where scienceworld or Java is missing; ends the Java process behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from needing import skip_below

from env_service.environments.scienceworld.simulator import SETUP, Simulator, installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_below(__file__, items, installed(), f"scienceworld or Java is not installed; run `{SETUP}`")


@pytest.fixture(autouse=True, scope="session")
def java() -> Iterator[None]:
    """One Java process for all of these tests."""
    yield
    if Simulator._one is not None:
        Simulator._one.stop()

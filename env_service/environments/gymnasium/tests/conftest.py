"""Skips this folder, with the reason, where the optional package is missing."""

import importlib.util
from pathlib import Path

import pytest

MISSING = importlib.util.find_spec("gymnasium") is None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if MISSING and here in item.path.parents and "without_the_package" not in item.name:
            item.add_marker(
                pytest.mark.skip(reason="gymnasium is not installed (see env_service/environments/gymnasium/README.md)")
            )

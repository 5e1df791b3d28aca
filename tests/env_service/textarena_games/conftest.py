"""Skips this folder, with the reason, where textarena is missing."""

from pathlib import Path

import pytest

from env_service.environments.textarena.package import SETUP, installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if installed():
        return
    for item in items:
        if here in item.path.parents and "without_the_package" not in item.name:
            item.add_marker(pytest.mark.skip(reason=f"textarena is not installed; run `{SETUP}`"))

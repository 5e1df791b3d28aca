"""Skips this folder, with the reason, where the optional package is missing."""

import importlib.util

import pytest
from needing import skip_below

REASON = "bfcl-eval is not installed (see env_service/environments/bfcl/README.md)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_below(__file__, items, importlib.util.find_spec("bfcl_eval") is not None, REASON)

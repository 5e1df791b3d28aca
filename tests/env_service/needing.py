"""Tests that need a world's package: skipped, with the reason, where it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest


def skip_below(conftest: str, items: list[pytest.Item], is_installed: bool, reason: str) -> None:
    """Skip the tests in a conftest's folder, but for those named `without_the_package`, unless the package is there."""
    here = Path(conftest).parent
    for item in items:
        if not is_installed and here in item.path.parents and "without_the_package" not in item.name:
            item.add_marker(pytest.mark.skip(reason=reason))

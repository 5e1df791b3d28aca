"""The contract of environments."""

from __future__ import annotations

import pytest
from environment_checks import keeps_the_contract


@pytest.mark.service
def test_it_keeps_the_contract() -> None:
    keeps_the_contract("textworld")

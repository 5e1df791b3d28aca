"""The contract of environments."""

from __future__ import annotations

import pytest
from environment_checks import keeps_the_contract

from env_service.environments.appworld.tests.tiny_world import build, interpreter


@pytest.mark.service
def test_it_keeps_the_contract() -> None:
    python = interpreter()
    keeps_the_contract("appworld", APPWORLD_PYTHON=str(python), APPWORLD_ROOT=str(build(python)))

"""The contract of environments."""

from __future__ import annotations

import pytest
from environment_checks import keeps_the_contract, understands_the_usual_splits

from env_service.environments.reasoning_gym.library import Library, NotInstalled


@pytest.fixture(autouse=True)
def installed() -> None:
    try:
        Library.shared()
    except NotInstalled as missing:
        pytest.skip(str(missing))


@pytest.mark.service
def test_it_keeps_the_contract() -> None:
    keeps_the_contract("reasoning_gym")


def test_it_understands_the_usual_names_of_splits() -> None:
    understands_the_usual_splits("reasoning_gym")

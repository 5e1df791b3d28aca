"""The contract of environments."""

from __future__ import annotations

import pytest
from environment_checks import keeps_the_contract, understands_the_usual_splits


@pytest.mark.service
def test_it_keeps_the_contract() -> None:
    keeps_the_contract("bfcl")


def test_it_understands_the_usual_names_of_splits() -> None:
    understands_the_usual_splits("bfcl")

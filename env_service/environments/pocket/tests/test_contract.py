"""The contract of environments."""

from __future__ import annotations

import pytest
from environment_checks import keeps_the_contract, understands_the_usual_splits


@pytest.mark.service
@pytest.mark.parametrize("name", ["pocket", "pocket_long", "pocket_app"])
def test_it_keeps_the_contract(name: str) -> None:
    keeps_the_contract(name)


@pytest.mark.parametrize("name", ["pocket", "pocket_long", "pocket_app"])
def test_it_understands_the_usual_names_of_splits(name: str) -> None:
    understands_the_usual_splits(name)

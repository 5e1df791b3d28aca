"""The contract of environments."""

from __future__ import annotations

from typing import Any

import pytest
from calling import calling
from environment_checks import UNSURE, keeps_the_contract, shows_a_right_call, understands_the_usual_splits


@pytest.mark.service
@pytest.mark.parametrize("name", ["pocket", "pocket_long", "pocket_app"])
def test_it_keeps_the_contract(name: str) -> None:
    keeps_the_contract(name)


@pytest.mark.parametrize("name", ["pocket", "pocket_long", "pocket_app"])
def test_it_understands_the_usual_names_of_splits(name: str) -> None:
    understands_the_usual_splits(name)


@pytest.mark.parametrize("name", ["pocket", "pocket_long", "pocket_app"])
@pytest.mark.parametrize("how", [{}, {"syntax": "json"}, {"native_tools": True}])
def test_a_language_model_is_shown_a_right_call(name: str, how: dict[str, Any]) -> None:
    shows_a_right_call(name, {"verbose": True, **how}, wrong=[UNSURE, calling(("no_tool", "{}"))])

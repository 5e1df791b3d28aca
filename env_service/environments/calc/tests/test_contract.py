"""The contract of environments."""

from __future__ import annotations

import pytest
from calling import calling
from environment_checks import UNSURE, keeps_the_contract, said, shows_a_right_call, understands_the_usual_splits


@pytest.mark.service
def test_it_keeps_the_contract() -> None:
    keeps_the_contract("calc")


def test_it_understands_the_usual_names_of_splits() -> None:
    understands_the_usual_splits("calc")


@pytest.mark.parametrize("native", [False, True])
def test_a_language_model_is_shown_a_right_call(native: bool) -> None:
    wrong = [UNSURE, calling(("calc", '{"a": 3}')) if native else said("calc 3 + 4")]
    shows_a_right_call("calc", {"verbose": True, "native_tools": native}, wrong=wrong)

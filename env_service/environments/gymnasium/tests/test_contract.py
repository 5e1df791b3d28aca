"""The contract of environments."""

from __future__ import annotations

import pytest
from calling import calling
from environment_checks import UNSURE, keeps_the_contract, said, shows_a_right_call, understands_the_usual_splits


@pytest.mark.service
def test_it_keeps_the_contract() -> None:
    keeps_the_contract("gymnasium")


def test_it_understands_the_usual_names_of_splits() -> None:
    understands_the_usual_splits("gymnasium")


@pytest.mark.parametrize("native", [False, True])
def test_a_language_model_is_shown_a_right_call(native: bool) -> None:
    wrong = [UNSURE, calling(("act", "{}")) if native else said("action: left\naction: right")]
    shows_a_right_call("gymnasium", {"native_tools": native}, wrong=wrong)

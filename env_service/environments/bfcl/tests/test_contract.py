"""The contract of environments."""

from __future__ import annotations

import pytest
from calling import calling
from environment_checks import keeps_the_contract, said, shows_a_right_call, understands_the_usual_splits


@pytest.mark.service
def test_it_keeps_the_contract() -> None:
    keeps_the_contract("bfcl")


def test_it_understands_the_usual_names_of_splits() -> None:
    understands_the_usual_splits("bfcl")


@pytest.mark.parametrize("native", [False, True])
def test_a_language_model_is_shown_a_right_call(native: bool) -> None:
    wrong = [calling(("ls", "{")) if native else said("<tool_call>{</tool_call>")]
    shows_a_right_call(
        "bfcl", {"native_tools": native}, wrong=wrong, takes=lambda info: info["calls"] == 1 > info["malformed_calls"]
    )

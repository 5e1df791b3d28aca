"""The arithmetic of an estimate, and what is said of it."""

from __future__ import annotations

import pytest

from agentevolver.llm import LLMSettings, Role
from agentevolver.llm.estimate import ACT_TOKENS, OPENING_TOKENS, STEP_TOKENS, Activity, exploring, report, solving

PAID = LLMSettings.model_validate({"base_url": "https://api.example.com/v1", "price_in": 2.0, "price_out": 10.0})


def test_an_explorer_sees_all_steps_in_breadth_and_the_last_ones_in_depth() -> None:
    found = exploring(10, breadth=3, depth=4, window=2)
    seen = [0, 1, 2, 2, 2, 2, 2]
    assert found == Activity(
        "exploring", Role.EXPLORER, 70, 10 * (7 * OPENING_TOKENS + sum(seen) * STEP_TOKENS), 70 * ACT_TOKENS
    )
    assert solving(2, 4).prompt_tokens == 2 * (4 * OPENING_TOKENS + 6 * STEP_TOKENS)


@pytest.mark.parametrize(
    ("budget", "warned"),
    [
        ({"max_tokens": 1_099_999}, 1),
        ({"max_tokens": 1_100_000, "max_cost": 3.0}, 0),
        ({"max_tokens": 1, "max_cost": 2.9}, 2),
    ],
)
def test_an_estimate_beyond_the_budget_is_a_warning(budget: dict[str, float], warned: int) -> None:
    settings = LLMSettings.model_validate({**PAID.model_dump(), "budget": budget})
    lines = report([Activity("one", Role.JUDGE, 5, 1_000_000, 100_000)], settings)
    assert sum("WARNING" in line for line in lines) == warned

"""The ratchet of budgets.toml: ceilings never rise by themselves, and are rewritten without touching the rest."""

import runpy
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

BUDGETS = runpy.run_path(str(Path(__file__).parents[1] / "budgets.py"))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_ceiling_follows_a_shrinking_count_once(count: int, ceiling: int) -> None:
    after = BUDGETS["lowered"](count, ceiling)
    assert after <= ceiling and (count > ceiling or count <= after)
    assert (after < ceiling) <= (0 < count < 0.95 * ceiling)
    assert BUDGETS["lowered"](count, after) == after

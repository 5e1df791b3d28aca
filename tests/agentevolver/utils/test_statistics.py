"""Statistics of results: intervals, differences in pairs."""

from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from agentevolver.utils.statistics import Estimate, estimate, half_width, paired


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_the_interval_is_the_textbooks(values: list[float]) -> None:
    expected = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    assert half_width(values) == pytest.approx(expected, abs=1e-9)
    assert estimate(values).mean == pytest.approx(mean(values))


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    assert estimate([0.5]) == Estimate(0.5, None, 1) and estimate([]) is None
    assert estimate([0.5]).shown() == "0.500" and estimate([0.5]).within() is None


def test_an_interval_of_a_share_ends_at_one() -> None:
    assert Estimate(0.9, 0.2, 4).within(0, 1) == (0.7, 1.0)
    assert Estimate(0.9, 0.2, 4).shown("+", 2) == "+0.90 ± 0.20"


@pytest.mark.parametrize(("value", "n"), [(0.0, 4), (1.0, 4), (0.5, 2), (0.5, 30)])
def test_equal_values_of_a_share_have_wilsons_interval(value: float, n: int) -> None:
    ends = set(estimate([value] * n).within(0.0, 1.0)) - {value}  # each is 1.96 of its own deviations away
    assert ends and all(abs(value - p) == pytest.approx(1.96 * (p * (1 - p) / n) ** 0.5, rel=1e-3) for p in ends)


def test_pairs_are_what_both_have() -> None:
    assert paired({"a": 1.0, "b": 0.5, "c": 9.0}, {"b": 0.25, "a": 0.75, "d": 0.0}) == Estimate(0.25, 0.0, 2)
    assert paired({"a": 1.0}, {"b": 1.0}) is None

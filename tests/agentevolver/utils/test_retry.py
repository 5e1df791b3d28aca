"""The one rule of retrying: what a pause is bounded by, and when there is no other try."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.utils.retry import BackoffPolicy, Retries, full_jitter


@settings(deadline=None)
@given(st.integers(1, 2000), st.floats(0, 100), st.one_of(st.none(), st.floats(0, 1000)))
def test_a_pause_is_bounded_and_at_least_what_was_asked(failures: int, most: float, asked: float | None) -> None:
    drawn = full_jitter(failures, first_wait_s=0.5, max_wait_s=most, asked_s=asked)
    assert 0 <= drawn - (asked or 0.0) <= most + 1e-9
    assert asked is None or drawn - asked <= 0.1 * most + 1e-9


def test_pauses_are_spread_over_the_whole_of_a_range_that_doubles_until_it_is_as_long_as_allowed() -> None:
    for failures, longest in ((1, 0.5), (2, 1.0), (4, 4.0), (9, 60.0)):
        drawn = [full_jitter(failures, first_wait_s=0.5, max_wait_s=60.0) for _ in range(2000)]
        assert max(drawn) <= longest
        assert min(drawn) < 0.05 * longest and max(drawn) > 0.95 * longest
        assert statistics.mean(drawn) == pytest.approx(longest / 2, rel=0.1)


def test_tries_are_counted() -> None:
    retries = Retries(BackoffPolicy(tries=3))
    assert [retries.failed() is None for _ in range(4)] == [False, False, True, True]


def test_no_try_begins_after_the_budget_of_time() -> None:
    now = [0.0]
    retries = Retries(BackoffPolicy(tries=100, budget_s=10.0, max_wait_s=0.0), lambda: now[0])
    assert retries.failed() == 0.0
    assert retries.failed(9.0) == 9.0
    now[0] = 5.0
    assert retries.failed(6.0) is None

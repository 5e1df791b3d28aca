"""The pace of an account: reserved moments, pauses, what is learnt of limits, and what processes share, also those that
are killed."""

from __future__ import annotations

import heapq
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from agentevolver.llm.pace import TABLE, Allowance, Pace, RateLimits, account_of


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pace.sqlite"


def moments(pace: Pace, count: int, tokens: int = 0) -> list[float]:
    return [pace.reserve(tokens) for _ in range(count)]


def test_without_limits_every_moment_is_now(path: Path, clock: Clock) -> None:
    assert moments(Pace("a", path, clock=clock), 50, 1000) == [0.0] * 50


def test_requests_of_all_processes_keep_to_the_limit_per_minute(path: Path, clock: Clock) -> None:
    one, other = (Pace("a", path, 60, clock=clock) for _ in range(2))
    due = sorted(pace.reserve(10) for _ in range(65) for pace in (one, other))
    for begin in range(0, 70, 5):
        assert sum(begin <= moment < begin + 60 for moment in due) <= 61
    assert due[0] == 0.0 and due[-1] == pytest.approx(130 * 60 / 57, abs=5)
    assert Pace("b", path, 60, clock=clock).reserve(10) == 0.0, "another account has a pace of its own"


def test_tokens_keep_to_the_limit_per_minute_and_what_was_not_needed_is_given_back(path: Path, clock: Clock) -> None:
    pace = Pace("a", path, None, 60_000, clock=clock)
    assert moments(pace, 1, 60_000) == [0.0]
    assert pace.reserve(1) == pytest.approx(60 / 0.95 - 3)
    pace.answered(clock.now, -50_000)
    assert pace.reserve(1) == pytest.approx(60 / 0.95 - 50 / 0.95 - 3, abs=0.1)


def test_a_pause_is_as_long_as_asked_and_holds_for_every_process(path: Path, clock: Clock) -> None:
    one, other = (Pace("a", path, clock=clock) for _ in range(2))
    assert 20.0 <= one.refused(clock.now, 20.0, 60.0) <= 20.1
    assert 20.0 <= other.closed_for() <= 20.1
    assert other.refusals == 1
    clock.now += 20.2
    assert other.closed_for() == 0.0


def test_without_a_word_pauses_grow_with_each_volley_of_refusals_up_to_the_longest(path: Path, clock: Clock) -> None:
    pace, longest = Pace("a", path, clock=clock), 0.0
    for volley in range(12):
        sent_at = clock.now
        first = pace.refused(sent_at, None, 8.0)
        assert 0.0 <= first <= min(8.0, 0.5 * 2**volley)
        assert pace.refused(sent_at - 0.1, None, 8.0) == first, "calls of the same volley do not make it longer"
        longest = max(longest, first)
        clock.now += first + 0.01
    assert pace.refusals == 12 and longest > 2.0
    pace.answered(clock.now)
    assert pace.refused(clock.now + 0.01, None, 8.0) <= 0.5


def test_limits_that_a_refusal_names_are_kept_to(path: Path, clock: Clock) -> None:
    Pace("a", path, clock=clock).refused(clock.now, 0.0, 60.0, (30.0, None))
    other = Pace("a", path, clock=clock)
    assert other.limits == (30.0, None)
    assert moments(other, 40)[-1] == pytest.approx(39 * 60 / 28.5 - 3, abs=1)


def test_where_headers_say_that_nothing_is_left_everyone_waits_until_there_is(path: Path, clock: Clock) -> None:
    pace = Pace("a", path, clock=clock)
    pace.answered(clock.now, 0, RateLimits(Allowance(500, 3, 30.0), Allowance(1000, 900, 60.0)), 60.0)
    assert pace.closed_for() == 0.0
    pace.answered(clock.now, 0, RateLimits(Allowance(500, 0, 30.0)), 60.0)
    assert pace.closed_for() == pytest.approx(30.0)
    pace.answered(clock.now, 0, RateLimits(tokens=Allowance(1000, 0, 3600.0)), 60.0)
    assert pace.closed_for() == pytest.approx(60.0), "not longer than a pause may be"


def test_a_pause_of_a_clock_that_was_set_back_is_none(path: Path, clock: Clock) -> None:
    Pace("a", path, clock=clock).refused(clock.now, 100.0, 60.0)
    clock.now -= 1e6
    assert Pace("a", path, clock=clock).closed_for() == 0.0


# ---- a server without a word of its limit, in virtual time ----


def fixed_window(limit: int, window_s: float) -> Callable[[float], bool]:
    taken: dict[int, int] = {}

    def admits(now: float) -> bool:
        number = int(now // window_s)
        taken[number] = taken.get(number, 0) + 1
        return taken[number] <= limit

    return admits


def sliding_window(limit: int, window_s: float) -> Callable[[float], bool]:
    times: deque[float] = deque()

    def admits(now: float) -> bool:
        while times and times[0] <= now - window_s:
            times.popleft()
        if len(times) >= limit:
            return False
        times.append(now)
        return True

    return admits


def simulated(
    path: Path, clock: Clock, admits: Callable[[float], bool], *, calls: int, workers: int
) -> tuple[float, int, float]:
    """Return (seconds, refusals, longest time of one call) of so many calls of workers in two processes, 1 s each."""
    began, left, refused, longest = clock.now, calls, 0, 0.0
    paces = [Pace("a", path, clock=clock) for _ in range(2)]
    events: list[tuple[float, int, float, float]] = [(clock.now, worker, 0.0, clock.now) for worker in range(workers)]
    heapq.heapify(events)
    while events:
        # due: 0 where a moment is to be reserved first; called: when the call began.
        clock.now, worker, due, called = heapq.heappop(events)
        pace = paces[worker % 2]
        if not due:
            due = clock.now + pace.reserve(100)
        wait = max(due - clock.now, pace.closed_for())
        if wait > 0:
            heapq.heappush(events, (clock.now + wait + random.uniform(0, 0.01), worker, due, called))
        elif not admits(clock.now):
            refused += 1
            pace.refused(clock.now, None, 60.0)
            heapq.heappush(events, (clock.now + 0.05, worker, 0.0, called))
        else:
            pace.answered(clock.now)
            longest = max(longest, clock.now + 1.0 - called)
            left -= 1
            if left >= workers:
                heapq.heappush(events, (clock.now + 1.0, worker, 0.0, clock.now + 1.0))
    return clock.now - began, refused, longest


@pytest.mark.parametrize(
    "server",
    [fixed_window(90, 60.0), sliding_window(90, 60.0), sliding_window(9, 6.0)],
    ids=["fixed", "sliding", "short"],
)
def test_a_limit_that_nobody_names_is_found_and_mostly_used(
    path: Path, clock: Clock, server: Callable[[float], bool]
) -> None:
    random.seed(5)
    seconds, refused, longest = simulated(path, clock, server, calls=900, workers=32)
    assert seconds < 1.6 * 600, "900 calls at 90 a minute take ten minutes"
    assert refused < 0.35 * 900
    assert longest < 300


# ---- processes ----


def test_one_that_is_killed_while_it_writes_holds_nobody_up(path: Path) -> None:
    code = (
        "import sqlite3, sys, time\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('BEGIN IMMEDIATE')\n"
        f"db.execute('UPDATE {TABLE} SET closed_until = 9e9'); print('holds', flush=True); time.sleep(60)\n"
    )
    pace = Pace("a", path)
    pace.reserve(1)
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "holds\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert pace.refused(0.0 + 2e9, 5.0, 60.0) >= 5.0
    assert Pace("a", path).closed_for() > 4.0


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be looked at", None], ids=["damaged", "no folder"]
)
def test_a_file_that_cannot_be_used_is_said_and_the_process_keeps_its_own_pace(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file" / "pace.sqlite" if content is None else tmp_path / "pace.sqlite"
    if content is None:
        path.parent.write_text("no folder")
    else:
        path.write_bytes(content)
    pace = Pace("a", path)
    pace.refused(2e9, 5.0, 60.0)
    assert pace.closed_for() > 4.0
    assert "do not share the pace" in caplog.text


def test_a_file_that_is_lost_on_the_way_is_said_and_the_pace_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pace = Pace("a", path, 60)
    with sqlite3.connect(path) as other:
        other.execute(f"DROP TABLE {TABLE}")
    assert pace.reserve(1) == 0.0
    assert pace.reserve(1) >= 0.0
    assert "cannot be shared" in caplog.text


def test_a_file_of_another_version_is_shared_without_a_word(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE paces_0 (account TEXT PRIMARY KEY, closed REAL)")
    Pace("a", path).refused(2e9, 5.0, 60.0)
    assert Pace("a", path).closed_for() > 4.0 and not caplog.text


def test_a_key_does_not_show_in_the_name_of_an_account() -> None:
    assert "sk-" not in account_of("https://a/v1", "sk-1")
    assert len({account_of("https://a/v1", "k"), account_of("https://a/v1", "l"), account_of("https://b/v1", "k")}) == 3

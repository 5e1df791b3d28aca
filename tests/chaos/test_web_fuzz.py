"""100,000 requests over the four servers, with and without credentials: no 5xx but 503 and 504, and every route is
served."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.web_fuzzing import fuzz_applications, fuzz_sockets

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1800)]

SOCKETS = 5_000


async def test_requests_to_the_applications(tmp_path: Path) -> None:
    begun = time.monotonic()
    fuzzers = await fuzz_applications(tmp_path, 100_000 - SOCKETS, seed=18)
    for fuzzer in fuzzers:
        for name, times in fuzzer.served_times().items():
            print(
                f"{name}: {times} x 2xx,",
                {status: n for (known, status), n in sorted(fuzzer.counts.items()) if known == name},
            )
    print(f"{sum(sum(fuzzer.counts.values()) for fuzzer in fuzzers)} requests in {time.monotonic() - begun:.0f} s")
    rarely = {name for fuzzer in fuzzers for name, times in fuzzer.served_times().items() if times < 100}
    assert not rarely


def test_requests_over_sockets_some_of_them_torn(tmp_path: Path) -> None:
    begun = time.monotonic()
    fuzzers = fuzz_sockets(tmp_path, SOCKETS, seed=18)
    statuses: dict[int, int] = {}
    for (_, status), count in sum((fuzzer.counts for fuzzer in fuzzers[1:]), fuzzers[0].counts).items():
        statuses[status] = statuses.get(status, 0) + count
    print(f"{sum(statuses.values())} requests in {time.monotonic() - begun:.0f} s:", dict(sorted(statuses.items())))
    assert sum(statuses.values()) == SOCKETS and statuses[200] > SOCKETS / 5

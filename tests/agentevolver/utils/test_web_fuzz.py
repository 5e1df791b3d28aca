"""A small share of the fuzz of the four servers; the whole is in the chaos tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web_fuzzing import fuzz_applications, fuzz_sockets, unserved

pytestmark = pytest.mark.service


async def test_three_thousand_requests_are_answered_as_they_may_be(tmp_path: Path) -> None:
    for fuzzer in await fuzz_applications(tmp_path, 3000, seed=1):
        assert not unserved(fuzzer)


def test_three_hundred_requests_over_sockets_too(tmp_path: Path) -> None:
    assert sum(sum(fuzzer.counts.values()) for fuzzer in fuzz_sockets(tmp_path, 300, seed=1)) == 300

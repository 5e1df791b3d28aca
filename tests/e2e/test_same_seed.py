"""Equal seeds, equal runs: everything that a run of the whole loop says, seconds and spending aside, is what another
one says.

How a run that is killed and resumed keeps to it is in the tier `chaos` (`tests/chaos/test_same_after_kills.py`).
"""

from pathlib import Path

import pytest

from benchmarks.digests import differing
from tests.e2e.conftest import Finished
from tests.e2e.runs import launch
from tests.e2e.whole_loop import STEPS, WANTED, said

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_two_fresh_runs_with_equal_seeds_say_the_same(whole_loop: Finished, tmp_path: Path) -> None:
    again = launch(tmp_path, "again", *WANTED, "trainer.save_freq=-1")
    try:
        assert again.wait() == 0, again.output
        first, second = said(whole_loop.directory), said(again.directory)
        assert {f"trajectories/step_{step}.jsonl" for step in STEPS} | {
            "validation/step_10.jsonl",
            "metrics/10",
            "pool",
        } <= set(first)
        assert differing(first, second) == []
    finally:
        again.end()

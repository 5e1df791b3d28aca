from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.trainer.validation import validation_metrics, validation_metrics_apart
from agentevolver.utils.statistics import best_at_k


@given(scores=st.lists(st.floats(0, 1), min_size=1, max_size=7), data=st.data())
def test_best_at_k_is_the_mean_over_all_subsets(scores, data):
    k = data.draw(st.integers(1, len(scores)))
    assert best_at_k(scores, k) == pytest.approx(np.mean([max(subset) for subset in combinations(scores, k)]))


def test_metrics_average_over_prompts_and_leave_failed_rollouts_out():
    metrics = validation_metrics(
        data_sources=["pocket"] * 5,
        prompts=["a", "a", "b", "b", "b"],
        values={"reward": [1.0, 0.0, 0.0, 0.0, 0.0], "success": [1, 0, 0, 0, 0]},
        masked=[False, False, False, False, True],
        n=2,
    )
    assert metrics["val-core/pocket/reward/mean@2"] == pytest.approx(0.25)
    assert metrics["val-core/pocket/reward/best@2/mean"] == pytest.approx(0.5)
    assert metrics["val-aux/pocket/failed_rollouts"] == 1.0


def test_rollouts_that_were_to_be_guided_are_averaged_apart_from_the_others():
    metrics = validation_metrics_apart(
        data_sources=["x/dev"] * 6,
        prompts=["a"] * 3 + ["b"] * 3,
        values={"reward": [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]},
        masked=[False, False, False, False, False, True],
        wanted=[False, True, True, False, True, True],
        n=(1, 2),
    )
    assert metrics["val-core/x/dev/reward/mean@1"] == 0.0
    assert metrics["val-core/x/dev/guided/reward/mean@2"] == 1.0
    assert metrics["val-aux/x/dev/failed_rollouts"] == 0.0 and metrics["val-aux/x/dev/guided/failed_rollouts"] == 1.0

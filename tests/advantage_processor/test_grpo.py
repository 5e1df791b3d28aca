import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advantage_processor.grpo import outcome_advantages
from tests.advantage_processor import reference


def advantages(outcomes, groups, valid=None, **options):
    mask = torch.tensor(valid if valid is not None else [True] * len(outcomes))
    return outcome_advantages(
        torch.tensor(outcomes, dtype=torch.float64), torch.tensor(groups), mask, **options
    ).tolist()


def test_a_singleton_gets_its_score_or_nothing():
    assert advantages([0.7], [0]) == pytest.approx([0.7], abs=1e-6)
    assert advantages([0.7], [0], norm_by_std=False) == [0.7]
    assert advantages([0.7], [0], singleton="neutral") == [0.0]
    assert advantages([0.7, 0.1, 0.9], [0, 1, 1], singleton="neutral")[1:] == pytest.approx(
        advantages([0.1, 0.9], [1, 1])
    )


OUTCOMES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.3, 1.0, 1.0]), st.integers(0, 4), st.sampled_from([True, True, True, False])),
    min_size=1,
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(batch=OUTCOMES)
def test_random_batches_agree_with_the_slow_reference(batch):
    outcomes, groups, valid = map(list, zip(*batch, strict=True))
    assert advantages(outcomes, groups, valid) == pytest.approx(reference.grpo(outcomes, groups, valid), abs=1e-9)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(batch=OUTCOMES, norm_by_std=st.booleans())
def test_one_row_a_trajectory_gives_verls_advantages(batch, norm_by_std):
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    outcomes, groups, _ = map(list, zip(*batch, strict=True))
    tokens = torch.zeros(len(batch), 3)
    tokens[:, -1] = torch.tensor(outcomes)
    expected, _ = core_algos.compute_grpo_outcome_advantage(
        tokens, torch.ones(len(batch), 3), np.array(groups), norm_adv_by_std_in_grpo=norm_by_std
    )
    found = advantages(outcomes, groups, norm_by_std=norm_by_std)
    assert found == pytest.approx(expected[:, 0].tolist(), abs=1e-4)

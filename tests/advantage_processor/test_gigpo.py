import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advantage_processor.grpo import anchor_ids, discounted_returns, step_advantages
from tests.advantage_processor import reference


@st.composite
def trajectories(draw):
    def one():
        states = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6))
        rewards = [draw(st.sampled_from([0.0, 0.0, 1.0, -0.5])) for _ in states]
        return {
            "states": states,
            "rewards": rewards,
            "group": draw(st.integers(0, 2)),
            "valid": draw(st.sampled_from([True, True, True, False])),
        }

    return [one() for _ in range(draw(st.integers(1, 8)))]


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(batch=trajectories(), gamma=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_random_batches_agree_with_the_slow_reference(batch, gamma):
    anchors = anchor_ids([t["states"] for t in batch], [t["group"] for t in batch])
    returns = discounted_returns(padded([t["rewards"] for t in batch]), gamma)
    found = step_advantages(returns, anchors, torch.tensor([t["valid"] for t in batch]))
    for row, expected in zip(found.tolist(), reference.gigpo(batch, gamma), strict=True):
        assert row[: len(expected)] == pytest.approx(expected, abs=1e-6)
        assert not any(row[len(expected) :])


def test_long_episodes_have_finite_returns_of_the_right_size():
    rewards = torch.zeros(1, 5000)
    rewards[0, -1] = 1.0
    returns = discounted_returns(rewards, 0.5)
    assert returns[0, -1] == 1.0 and returns[0, -11].item() == pytest.approx(0.5**10)
    assert returns.isfinite().all()
    assert discounted_returns(torch.ones(1, 5000), 1.0)[0, 0] == 5000

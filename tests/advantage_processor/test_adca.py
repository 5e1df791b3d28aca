import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advantage_processor.adca import (
    AdcaConfig,
    Steps,
    alpha_at,
    step_credit,
    to_tokens,
)
from tests.advantage_processor import reference

FLAGS = ["GBG", "BB", "GGGB"]
OUTCOMES = [1.0, 0.0, 1.0]
GOLDEN = {
    "pooled, all steps": (
        AdcaConfig(statistics="pooled", outcome="all_steps"),
        [[2.188402, 1.391853, 0.79655], [-3.052034, -1.526017], [2.984952, 2.188402, 1.391853, 0.595303]],
    ),
    "allocation, last step": (
        AdcaConfig(scheme="allocation"),
        [[0.940594, 0.831891, 0.81581], [-1.683078, -1.548646], [0.933519, 0.860996, 0.788474, 0.715951]],
    ),
}


def trajectory(flags, outcome, group=0, labelled=True, valid=True):
    scores = [1.0 if flag == "G" else -1.0 for flag in flags]
    return {"scores": scores, "outcome": outcome, "group": group, "labelled": labelled, "valid": valid}


def steps_of(trajectories):
    width = max(len(t["scores"]) for t in trajectories)
    padded = [t["scores"] + [math.nan] * (width - len(t["scores"])) for t in trajectories]  # padding may hold anything
    return Steps(
        scores=torch.tensor(padded, dtype=torch.float64),
        lengths=torch.tensor([len(t["scores"]) for t in trajectories]),
        outcomes=torch.tensor([t["outcome"] for t in trajectories], dtype=torch.float64),
        grades=torch.tensor([t["outcome"] for t in trajectories], dtype=torch.float64),
        groups=torch.tensor([t["group"] for t in trajectories]),
        labelled=torch.tensor([t["labelled"] for t in trajectories]),
        valid=torch.tensor([t["valid"] for t in trajectories]),
    )


def advantages_of(trajectories, config=AdcaConfig(), alpha=0.1):  # noqa: B008 - a frozen value
    table = step_credit(steps_of(trajectories), config, alpha).advantages
    return [row[: len(t["scores"])].tolist() for row, t in zip(table, trajectories, strict=True)]


def assert_same(found, expected, tolerance=1e-9):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=tolerance, rel=tolerance)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_vectors_hold(name):
    config, expected = GOLDEN[name]
    batch = [trajectory(flags, outcome) for flags, outcome in zip(FLAGS, OUTCOMES, strict=True)]
    assert_same(advantages_of(batch, config), expected, tolerance=1.5e-6)


@pytest.mark.parametrize(("step", "alpha"), [(0, 0.1), (25, 0.085355), (75, 0.014645), (120, 0.0)])
def test_the_cosine_schedule_follows_its_golden_vector(step, alpha):
    assert alpha_at(step, alpha=0.1, cosine=True, total_steps=100) == pytest.approx(alpha, abs=1e-6)
    assert alpha_at(step, alpha=0.1) == 0.1


CONFIGS = st.builds(
    AdcaConfig,
    scheme=st.just("decouple"),
    standardise=st.booleans(),
    statistics=st.sampled_from(["equal", "pooled"]),
    sigma=st.sampled_from(["steps", "means"]),
    sigma_floor=st.sampled_from([0.0, 0.5, 2.0]),
    base=st.sampled_from([0.2, 1.0]),
    outcome=st.sampled_from(["last_step", "all_steps", "only_prm"]),
    length_normalisation=st.booleans(),
) | st.builds(
    AdcaConfig,
    scheme=st.just("allocation"),
    outcome=st.sampled_from(["last_step", "all_steps"]),
    consistent_scale=st.sampled_from([1.0, 0.5, 0.0]),
    pos_unconsistent_scale=st.sampled_from([0.2, 0.0]),
    neg_unconsistent_scale=st.sampled_from([-0.2, 0.3, 0.0]),
)


@st.composite
def batches(draw):
    """Ragged batches with groups of one, groups without spread, unlabelled and masked rollouts."""
    return draw(
        st.lists(
            st.builds(
                trajectory,
                flags=st.text("GB", min_size=1, max_size=7),
                outcome=st.sampled_from([0.0, 0.0, 0.3, 0.55, 1.0, 1.0]),
                group=st.integers(-1, 3),
                labelled=st.sampled_from([True, True, True, False]),
                valid=st.sampled_from([True, True, True, True, False]),
            ),
            min_size=1,
            max_size=14,
        )
    )


@settings(max_examples=40, deadline=None)
@given(batch=batches(), config=CONFIGS, alpha=st.sampled_from([0.0, 0.1, 1.0]))
def test_random_batches_agree_with_the_slow_reference(batch, config, alpha):
    assert_same(advantages_of(batch, config, alpha), reference.adca(batch, config, alpha), tolerance=1e-7)


@settings(max_examples=20, deadline=None)
@given(batch=batches(), floor=st.floats(0.05, 2.0), base=st.floats(1e-3, 1e3))
def test_no_standardised_score_exceeds_what_the_floor_allows(batch, floor, base):
    credit = step_credit(steps_of(batch), AdcaConfig(sigma="means", sigma_floor=floor, base=base), 0.1)
    assert credit.attribution.abs().max().item() <= 2.0 / floor * (1.0 + 1e-9)


@pytest.mark.parametrize("outcome", [0.1, 1e-7])
def test_a_group_of_one_outcome_has_no_outcome_credit(outcome):
    batch = [trajectory("G", outcome) for _ in range(7)]
    assert not step_credit(steps_of(batch), AdcaConfig(), 0.1).outcome.any()


def test_tiny_differences_of_outcomes_still_count():
    batch = [trajectory("G", 0.5), trajectory("G", 0.5 + 1e-6)]
    assert step_credit(steps_of(batch), AdcaConfig(), 0.1).outcome.tolist() == pytest.approx([-1.0, 1.0], abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_tokens_get_the_value_of_their_step_and_no_other_token_gets_any(data):
    per_step = torch.randn(
        3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    )
    rows = data.draw(st.lists(st.integers(-1, 2), min_size=1, max_size=6))
    width = data.draw(st.integers(0, 9))
    ids = [[data.draw(st.integers(-1, 4)) for _ in range(width)] for _ in rows]
    found = to_tokens(per_step, torch.tensor(rows), torch.tensor(ids, dtype=torch.long).reshape(len(rows), width))
    assert found.dtype == torch.float32
    for i, row in enumerate(rows):
        expected = [per_step[row, k].item() if row >= 0 and k >= 0 else 0.0 for k in ids[i]]
        assert found[i].tolist() == pytest.approx(expected, abs=1e-6)


def test_tokens_are_looked_up_in_parts_that_fit_together(monkeypatch):
    per_step, rows = torch.randn(50, 4), torch.randint(-1, 50, (200,))
    ids = torch.randint(-1, 4, (200, 33))
    whole = to_tokens(per_step, rows, ids)
    monkeypatch.setattr("advantage_processor.adca.TOKENS_AT_ONCE", 70)
    assert torch.equal(to_tokens(per_step, rows, ids), whole)
    assert torch.equal(to_tokens(per_step, rows, ids.to(torch.int16)), whole)

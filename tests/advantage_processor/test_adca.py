"""ADCA-GRPO: the golden vectors, a slow reference on random batches, the invariances, and what stays out of every
statistic."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advantage_processor.adca import (
    PRESETS,
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
    "equal, last step": (
        AdcaConfig(),
        [[0.823954, 0.718235, 0.812826], [-1.603395, -1.508804], [0.929673, 0.823954, 0.718235, 0.612516]],
    ),
    "equal, all steps": (
        AdcaConfig(outcome="all_steps"),
        [[2.238167, 1.425342, 0.812826], [-3.017608, -1.508804], [3.050993, 2.238167, 1.425342, 0.612516]],
    ),
    "pooled, last step": (
        AdcaConfig(statistics="pooled"),
        [[0.774189, 0.684746, 0.79655], [-1.63782, -1.526017], [0.863632, 0.774189, 0.684746, 0.595303]],
    ),
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


def test_the_papers_deviation_is_of_trajectory_means():
    """Means 1/3, -1, 1/2: mu = -1/18, sigma = sqrt of the mean squared distance to it."""
    batch = [trajectory(flags, outcome) for flags, outcome in zip(FLAGS, OUTCOMES, strict=True)]
    mu = -1 / 18
    sigma = math.sqrt(sum((m - mu) ** 2 for m in (1 / 3, -1.0, 1 / 2)) / 3)
    credit = step_credit(steps_of(batch), PRESETS["paper"], 0.1)
    assert credit.attribution[0, :3].tolist() == pytest.approx([(1 - mu) / sigma, (-1 - mu) / sigma, (1 - mu) / sigma])


@pytest.mark.parametrize(
    ("step", "alpha"), [(0, 0.1), (25, 0.085355), (50, 0.05), (75, 0.014645), (100, 0.0), (120, 0.0)]
)
def test_the_cosine_schedule_follows_its_golden_vector(step, alpha):
    assert alpha_at(step, alpha=0.1, cosine=True, total_steps=100) == pytest.approx(alpha, abs=1e-6)


def test_alpha_is_constant_or_ends_at_the_minimum():
    assert alpha_at(70, alpha=0.1) == 0.1
    assert alpha_at(99, alpha=0.2, cosine=True, total_steps=50) == pytest.approx(0.0)


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
def batches(draw, labels=True):
    """Ragged batches with groups of one, groups without spread, unlabelled and masked rollouts."""
    return draw(
        st.lists(
            st.builds(
                trajectory,
                flags=st.text("GB", min_size=1, max_size=7),
                outcome=st.sampled_from([0.0, 0.0, 0.3, 0.55, 1.0, 1.0]),
                group=st.integers(-1, 3),
                labelled=st.sampled_from([True, True, True, False]) if labels else st.just(True),
                valid=st.sampled_from([True, True, True, True, False]),
            ),
            min_size=1,
            max_size=14,
        )
    )


@settings(max_examples=80, deadline=None)
@given(batch=batches(), config=CONFIGS, alpha=st.sampled_from([0.0, 0.1, 1.0]))
def test_random_batches_agree_with_the_slow_reference(batch, config, alpha):
    assert_same(advantages_of(batch, config, alpha), reference.adca(batch, config, alpha), tolerance=1e-7)


@settings(max_examples=60, deadline=None)
@given(batch=batches(), config=CONFIGS, data=st.data())
def test_masked_rollouts_take_no_part_whatever_they_hold(batch, config, data):
    expected = advantages_of(batch, config)
    changed = [
        t
        if t["valid"]
        else {**t, "outcome": data.draw(st.sampled_from([0.0, 1.0, 1e9])), "scores": [-s for s in t["scores"]]}
        for t in batch
    ]
    assert_same(advantages_of(changed, config), expected)
    without = [t for t in batch if t["valid"]]
    if without:
        assert_same(advantages_of(without, config), [row for row, t in zip(expected, batch, strict=True) if t["valid"]])
    assert all(value == 0.0 for row, t in zip(expected, batch, strict=True) if not t["valid"] for value in row)


def nearly_equal_means(bad_counts, length=30):
    """A group whose trajectories are `length` steps long and hold so many BAD labels, the BAD ones first."""
    return [trajectory("B" * count + "G" * (length - count), 0.0) for count in bad_counts]


def test_nearly_equal_trajectory_means_do_not_make_a_label_worth_sixty_deviations():
    """Seven rollouts with 10 BAD labels of 30 and one with 11: their means' deviation is .022, the labels are 1 apart
    from 0."""
    batch = nearly_equal_means([10] * 7 + [11])
    unbounded = step_credit(steps_of(batch), replace(PRESETS["paper"], sigma_floor=0.0), 0.1)
    assert unbounded.attribution.abs().max().item() == pytest.approx(60.1, abs=0.05)
    assert unbounded.advantages.max().item() == pytest.approx(61.2, abs=0.05)  # of rollouts that all failed
    bounded = step_credit(steps_of(batch), PRESETS["paper"], 0.1)
    assert bounded.attribution.abs().max().item() == pytest.approx(2.65, abs=0.01)
    assert bounded.advantages.abs().max().item() == pytest.approx(2.70, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(batch=batches(), floor=st.floats(0.05, 2.0), base=st.floats(1e-3, 1e3))
def test_no_standardised_score_exceeds_what_the_floor_allows(batch, floor, base):
    credit = step_credit(steps_of(batch), AdcaConfig(sigma="means", sigma_floor=floor, base=base), 0.1)
    assert credit.attribution.abs().max().item() <= 2.0 / floor * (1.0 + 1e-9)


@pytest.mark.parametrize("outcome", [0.0, 1.0, 0.1, 1e-7, 1 / 3])
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


def gradient_step(good_action, outcome_of):
    """Return the direction (3 steps, 2 actions) that a policy-gradient step moves the logits of a uniform policy in.

    Each of the eight action sequences is rolled out twice; the judge calls `good_action` GOOD, `outcome_of` grades
    sequence and copy.
    """
    logits = torch.zeros(3, 2, requires_grad=True)
    actions = torch.cartesian_prod(*[torch.arange(2)] * 3).repeat(2, 1)
    copies = torch.arange(2).repeat_interleave(8)
    everything = torch.ones(16, dtype=torch.bool)
    scores = torch.where(actions == good_action, 1.0, -1.0)
    outcomes = outcome_of(actions, copies).double()
    lengths, groups = torch.full((16,), 3), torch.zeros(16, dtype=torch.long)
    steps = Steps(scores, lengths, outcomes, outcomes, groups, everything, everything)
    advantages = step_credit(steps, AdcaConfig(), 0.1).advantages
    tokens = to_tokens(advantages, torch.arange(16), torch.arange(3).expand(16, 3))
    loss = -(tokens * logits.log_softmax(-1)[torch.arange(3), actions]).mean()
    return -torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("good_action", [0, 1])
def test_a_policy_moves_the_way_the_labels_say_where_outcomes_say_nothing(good_action):
    step = gradient_step(good_action, lambda actions, copies: copies)
    assert (step[:, good_action] > 0).all() and (step[:, 1 - good_action] < 0).all()


def test_labels_add_to_what_the_outcome_says_of_the_step_that_decided_it():
    step = gradient_step(0, lambda actions, copies: actions[:, 1] == 0)
    assert (step[:, 0] > 0).all()
    assert step[1, 0] > 3 * step[0, 0] and step[1, 0] > 3 * step[2, 0]


def test_the_outcome_outweighs_labels_that_contradict_it_at_the_default_alpha():
    """A judge that calls every step of the failures GOOD and of the successes BAD cannot turn a single advantage
    around."""
    batch = [trajectory("BBB", 1.0), trajectory("GGG", 0.0), trajectory("BBB", 1.0), trajectory("GGG", 0.0)]
    for t, row in zip(batch, advantages_of(batch), strict=True):
        assert all(value > 0 for value in row) if t["outcome"] else all(value < 0 for value in row)

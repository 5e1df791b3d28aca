"""ADPO's scale: the vectors of its description, verl's own GRPO times the scale, and where p comes from."""

import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from advantage_processor.pipeline import Processor, StageContext, StageError, assign, make_stage
from advantage_processor.settings import AttributionSettings, StageSettings
from agentevolver.config.checks import load
from agentevolver.recipes.adpo.ambiguity import BUCKETS, P_HAT, PHatError, bucket, p_hat, scale, trust, upper_clip
from agentevolver.recipes.adpo.prepare import check_tasks
from agentevolver.trainer.job.main import check_stages
from agentevolver.types import Reward, Task
from agentevolver.utils.errors import ConfigError
from tests.trajectories import trajectory

BASIC = Path(__file__).parents[4] / "examples" / "basic.yaml"
# p, s at s_min .6, s at s_min .5, the upper clip at eps .2 and bonus .1: worked out by hand from the formulas.
VECTORS = [
    (0.0, 0.60, 0.50, 0.30),
    (0.3, 0.60, 0.50, 0.30),
    (0.4, 0.68, 0.60, 0.28),
    (0.5, 0.76, 0.70, 0.26),
    (0.55, 0.80, 0.75, 0.25),
    (0.6, 0.84, 0.80, 0.24),
    (0.7, 0.92, 0.90, 0.22),
    (0.8, 1.00, 1.00, 0.20),
    (1.0, 1.00, 1.00, 0.20),
]
ADPO = {"enable": True, "attributor": "none", "stages": ["outcome", {"use": "ambiguity"}]}


@pytest.mark.parametrize(("p", "at_6", "at_5", "clip"), VECTORS)
def test_the_vectors(p, at_6, at_5, clip):
    assert scale(p, 0.3, 0.8, 0.6) == pytest.approx(at_6, abs=1e-12)
    assert scale(p, 0.3, 0.8, 0.5) == pytest.approx(at_5, abs=1e-12)
    assert upper_clip(p, 0.2, 0.3, 0.8, 0.1) == pytest.approx(clip, abs=1e-12)


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_agreement_never_means_less_weight_nor_more_room(one, other):
    low, high = sorted((one, other))
    assert 0.6 <= scale(low, 0.3, 0.8, 0.6) <= scale(high, 0.3, 0.8, 0.6) <= 1.0
    assert 0.2 + 0.1 >= upper_clip(low, 0.2, 0.3, 0.8, 0.1) >= upper_clip(high, 0.2, 0.3, 0.8, 0.1) >= 0.2
    assert 0 <= trust(low, 0.3, 0.8) <= trust(high, 0.3, 0.8) <= 1
    assert bucket(low, 0.3, 0.8) <= bucket(high, 0.3, 0.8)


def test_a_task_without_a_known_p_keeps_scale_and_clip():
    assert scale(None, 0.3, 0.8, 0.6) == 1.0 and upper_clip(None, 0.2, 0.3, 0.8, 0.1) == 0.2
    assert [BUCKETS[bucket(p, 0.3, 0.8)] for p in (None, 0.1, 0.3, 0.5, 0.7, 0.8)] == [
        *("none", "low", "low", "middle", "high", "high")
    ]


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.array([0.5], dtype=object)[0], 1, 0])
def test_p_may_be_any_number(value):
    assert p_hat(Task("t", "calc", metadata={P_HAT: value})) == float(value)


@pytest.mark.parametrize("value", ["0.5", True, -0.1, 1.1, float("nan"), [0.5]])
def test_what_is_no_share_is_refused(value):
    with pytest.raises(PHatError, match=r"task t: adpo_p_hat = .* is not a share"):
        p_hat(Task("t", "calc", metadata={P_HAT: value}))


def test_a_task_that_says_no_p_is_an_error_and_not_a_default():
    with pytest.raises(PHatError, match=r"task t: the metadata lack adpo_p_hat: write"):
        p_hat(Task("t", "calc"))
    told = [trajectory(group_id="g", steps=[{}], outcome={"score": 1.0, "success": True})]
    with pytest.raises(PHatError):
        assign(Processor(AttributionSettings(**ADPO)), 1, told, ["g_0_0"], [[0]])


def rollouts(groups):
    """Trajectories of groups given as (p, scores), a step each, in an order that says nothing."""
    made = [
        trajectory(
            group_id=f"{number:06d}",
            rollout_id=i,
            task={"task_id": f"t{number}", "metadata": {P_HAT: p}},
            steps=[{"index": 0}],
            outcome={"score": score, "success": score >= 1},
        )
        for number, (p, scores) in enumerate(groups)
        for i, score in enumerate(scores)
    ]
    random.Random(3).shuffle(made)
    return made


def test_rewards_and_scale_by_hand():
    """[1, 1, 1, -1]: mean .5, unbiased deviation 1."""
    told = rollouts([(0.3, [1.0, 1.0, 1.0, 0.0])])
    for one in told:
        one.reward = Reward(1.0 if one.outcome.success else -1.0)
    keys = [f"{one.trajectory_id}_0" for one in told]
    rows, _ = assign(Processor(AttributionSettings(**ADPO)), 1, told, keys, [[0, -1]] * 4)
    found = {one.outcome.success: row.tolist() for one, row in zip(told, rows, strict=True)}
    assert found[True] == pytest.approx([0.3, 0.0], abs=2e-6) and found[False] == pytest.approx([-0.9, 0.0], abs=2e-6)


def verls(told, keys, norm):
    """What verl's own trainer computes for the same rows, one float a row."""
    scores = {one.trajectory_id: one.outcome.score for one in told}
    data = DataProto.from_dict(
        tensors={
            "token_level_rewards": torch.tensor([[0.0, scores[key.rsplit("_", 1)[0]]] for key in keys]),
            "response_mask": torch.ones(len(keys), 2, dtype=torch.long),
        },
        non_tensors={"uid": np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)},
    )
    made = compute_advantage_for_multi_trajectories(data, keys, "grpo", norm_adv_by_std_in_grpo=norm)
    return made.batch["advantages"][:, 0].tolist()


SHARES = st.one_of(st.none(), st.floats(0, 1).map(lambda x: round(x, 3)))
SCORES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=5)


@given(st.lists(st.tuples(SHARES, SCORES), min_size=1, max_size=4), st.booleans(), st.integers(1, 3))
def test_grpo_and_the_scale_alone_are_verls_numbers_times_the_scale(groups, norm, outputs):
    told = rollouts(groups)
    keys = [f"{one.trajectory_id}_{row}" for one in told for row in range(outputs)]
    stages = [{"use": "outcome", "norm_by_std": norm}, {"use": "ambiguity", "s_min": 0.5}]
    settings = AttributionSettings(enable=True, attributor="none", stages=stages)
    rows, _ = assign(Processor(settings), 1, told, keys, [[0, 0]] * len(keys))
    factor = {one.trajectory_id: scale(one.task.metadata[P_HAT], 0.3, 0.8, 0.5) for one in told}
    expected = [a * factor[key.rsplit("_", 1)[0]] for a, key in zip(verls(told, keys, norm), keys, strict=True)]
    for row, value in zip(rows, expected, strict=True):
        assert row.tolist() == pytest.approx([value, value], rel=1e-5, abs=1e-6)


def test_what_a_grader_says_beside_the_score_cannot_alter_p():
    told = rollouts([(0.3, [1.0, 0.0])])
    keys = [f"{one.trajectory_id}_0" for one in told]
    plain, metrics = assign(Processor(AttributionSettings(**ADPO)), 1, told, keys, [[0]] * 2)
    for one in told:
        one.outcome = replace(one.outcome, facts={P_HAT: 1.0, "score": 1.0, "metadata": {P_HAT: 1.0}})
    again, after = assign(Processor(AttributionSettings(**ADPO)), 1, told, keys, [[0]] * 2)
    assert [row.tolist() for row in plain] == [row.tolist() for row in again]
    assert after["adpo/p/mean"] == metrics["adpo/p/mean"] == 0.3


def test_the_metrics_tell_scale_p_and_what_became_of_the_advantages():
    told = rollouts([(0.3, [1.0, 0.0]), (0.8, [1.0, 0.0]), (None, [1.0, 0.0])])
    keys = [f"{one.trajectory_id}_0" for one in told]
    _, metrics = assign(Processor(AttributionSettings(**ADPO)), 1, told, keys, [[0]] * 6)
    assert metrics["adpo/scale/mean"] == pytest.approx((0.6 + 1 + 1) / 3)
    assert metrics["adpo/p/mean"] == pytest.approx(0.55)
    assert [metrics[f"adpo/share/{name}"] for name in BUCKETS] == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    size = 0.5**0.5
    assert metrics["adpo/advantage/before"] == pytest.approx(size, rel=1e-5)
    assert metrics["adpo/advantage/after"] == pytest.approx(size * ((0.36 + 2) / 3) ** 0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lo": 0.8, "hi": 0.3}, "the smaller one first"),
        ({"lo": -0.1}, "two shares in 0..1"),
        ({"s_min": 0.0}, "s_min = 0.0"),
        ({"s_min": 1.5}, "s_min = 1.5"),
        ({"smin": 0.5}, "smin"),
    ],
)
def test_options_that_are_none_are_refused_before_training(options, message):
    with pytest.raises(StageError, match=message):
        make_stage(StageSettings(use="ambiguity", **options), StageContext(AttributionSettings()))


def test_the_scale_of_nothing_and_credit_from_nobody_are_refused():
    with pytest.raises(ValueError, match=r"the first stage is ambiguity.*write outcome before it"):
        Processor(AttributionSettings(enable=True, attributor="none", stages=["ambiguity"]))
    with pytest.raises(ValueError, match=r"attributor = none.*leave it out of stages"):
        AttributionSettings(enable=True, attributor="none")
    with pytest.raises(ValueError, match=r"alpha = 0.5 would have no effect: attributor is none"):
        AttributionSettings(enable=True, attributor="none", stages=["outcome"], adca_grpo={"alpha": 0.5})
    assert not AttributionSettings(**ADPO).labels_wanted(1)


def test_a_run_whose_tasks_do_not_say_p_is_refused_before_it_starts():
    asked = [f"attribution_driven_credit_assignment.{one}" for one in ("enable=true", "attributor=none")]
    asked.append("attribution_driven_credit_assignment.stages=[outcome, ambiguity]")
    known = [Task("a", "calc", metadata={P_HAT: p}) for p in (0.3, None)]
    for overrides, refuses in (([*asked], True), (["trainer.row_clips=[ambiguity]"], True), ([], False)):
        settings = load(BASIC, ["device=cpu", *overrides]).settings
        check_stages(settings)
        check_tasks(None, settings, known)
        with pytest.raises(ConfigError, match=r"task b: .*adpo_p_hat") if refuses else nullcontext():
            check_tasks(None, settings, [*known, Task("b", "calc")])

"""The stage `diagnosis`: within its bounds, with the mean 1, most weight where it went wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from advantage_processor.pipeline import Processor, StageError, assign
from advantage_processor.settings import AttributionSettings
from agentevolver.recipes.seal.diagnose import KINDS
from agentevolver.recipes.seal.factors import LEAST, MOST, SCALES, bounded, checked_scales
from agentevolver.types import Diagnosis
from tests.trajectories import trajectory

STAGES = {"enable": True, "attributor": "none", "stages": ["outcome", {"use": "diagnosis"}]}


def test_each_kind_has_a_factor():
    assert set(SCALES) == set(KINDS)


@settings(max_examples=50)
@given(st.lists(st.floats(LEAST, MOST), min_size=1, max_size=30))
def test_factors_have_the_mean_1_and_stay_within_their_bounds(factors):
    made = bounded(factors)
    assert sum(made) / len(made) == pytest.approx(1.0)
    assert all(LEAST - 1e-9 <= one <= MOST + 1e-9 for one in made)
    assert all(
        (a < b) <= (x <= y) for a, x in zip(factors, made, strict=True) for b, y in zip(factors, made, strict=True)
    )


def told(number, score, diagnoses=()):
    one = trajectory(
        group_id="g",
        rollout_id=number,
        steps=[{"index": 0}, {"index": 1}],
        outcome={"score": score, "success": score == 1},
    )
    one.diagnoses = diagnoses
    return one


def advantages(stages, rollouts):
    keys = [f"g_{i}_0" for i in range(len(rollouts))]
    made, report = assign(Processor(AttributionSettings(**stages)), 1, rollouts, keys, [[0, 1]] * len(rollouts))
    return torch.stack(made), report


def test_the_diagnosed_step_weighs_most_and_nothing_turns_its_sign():
    rollouts = [told(0, 1.0), told(1, 0.0, (Diagnosis(1, "malformed", "x"),)), told(2, 0.0)]
    plain, _ = advantages({**STAGES, "stages": ["outcome"]}, rollouts)
    scaled, report = advantages(STAGES, rollouts)
    factor = scaled / plain
    assert factor[1, 1] > 1 > factor[1, 0] and factor.mean() == pytest.approx(1.0)
    assert report["diagnosis/steps"] == 1 and report["diagnosis/share"] == pytest.approx(1 / 6)
    assert report["diagnosis/scale/mean"] == pytest.approx(float(factor[1, 1]))


def test_without_diagnoses_the_advantages_stay():
    rollouts = [told(0, 1.0), told(1, 0.0)]
    assert torch.equal(advantages(STAGES, rollouts)[0], advantages({**STAGES, "stages": ["outcome"]}, rollouts)[0])


@pytest.mark.parametrize("options", [{"malformed": 1.6}, {"malformed": 0.4}, {"slow": 1.0}, {"refused": True}])
def test_what_is_no_factor_is_refused(options):
    with pytest.raises(StageError, match="diagnosis"):
        Processor(AttributionSettings(**{**STAGES, "stages": ["outcome", {"use": "diagnosis", **options}]}))


def test_it_needs_something_to_scale():
    with pytest.raises(ValueError, match="the first stage is diagnosis"):
        Processor(AttributionSettings(**{**STAGES, "stages": ["diagnosis"]}))
    assert checked_scales({})["judged"] == SCALES["judged"]


def test_a_record_keeps_its_diagnoses():
    one = told(0, 0.0, (Diagnosis(1, "refused", "note.del", "no"),))
    assert type(one).from_dict(one.to_dict()).diagnoses == one.diagnoses
    assert "diagnoses" not in told(0, 0.0).to_dict()

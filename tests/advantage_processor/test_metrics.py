from dataclasses import replace

import pytest

from advantage_processor import AttributionSettings
from agentevolver.types import Attribution, Reward
from tests.advantage_processor.records import record
from tests.advantage_processor.test_pipeline import process


def with_attribution(data, **attribution):
    told = {**(data.attribution.to_dict() if data.attribution else {}), **attribution}
    return replace(data, attribution=Attribution.from_dict(told))


def test_parse_success_is_of_the_replies_that_came():
    records = [
        record("g", 0, "G", 1.0),
        with_attribution(record("g", 1, steps=2, score=0.0), status="failed", kind="reply", calls=2, repairs=1),
        with_attribution(record("g", 2, steps=2, score=0.0), status="failed", kind="unavailable", calls=1),
        with_attribution(record("g", 3, "GG", 1.0), cached=True, calls=0),
        with_attribution(record("g", 4, steps=1, score=1.0), status="skipped"),
    ]
    m = process(records)[1].metrics
    assert (
        m["prm/parse_success_rate"] == 0.5
    )  # one parsed, one not; no reply came of the third, none was asked of the others
    assert (m["prm/failed"], m["prm/failed/reply"], m["prm/failed/unavailable"]) == (2.0, 1.0, 1.0)
    assert (m["prm/skipped"], m["prm/cached"], m["prm/calls"], m["prm/repairs"]) == (1.0, 1.0, 4.0, 1.0)
    assert m["prm/unlabelled"] == 3.0


@pytest.mark.parametrize("scheme", ["decouple", "allocation"])
def test_a_success_is_what_its_grader_calls_one_whatever_reward_stages_make_of_it(scheme):
    config = AttributionSettings(enable=True, adca_grpo={"prm_scheme": scheme})
    records = [record("g", 0, "GBG", 1.0), record("g", 1, "BB", 0.0), record("g", 2, "GGGB", 0.8)]
    (_, plain), shaped = process(records, config), []
    for shift in (-2.0, 2.0):
        for one in records:
            one.reward = Reward(one.outcome.score + shift)
        shaped.append(process(records, config)[1])
    names = [name for name in plain.metrics if not name.startswith("timing_s/")]
    for made in shaped:
        assert [made.metrics[name] for name in names] == pytest.approx([plain.metrics[name] for name in names])
        assert made.advantages.flatten().tolist() == pytest.approx(plain.advantages.flatten().tolist())

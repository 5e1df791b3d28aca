"""Labels of a training step from a judge behind a real HTTP server, and its advantages where the judge misbehaves."""

import asyncio
import json
import random

import pytest

from advantage_processor import AttributionSettings
from advantage_processor.attributor import Attributor, judge_settings
from advantage_processor.batch import make_batch, pad_step_ids
from advantage_processor.pipeline import Processor
from agentevolver.llm import LLM, LLMSettings, Role
from agentevolver.types import Attribution, LabelStatus
from tests.advantage_processor.judges import as_json, labels_for
from tests.advantage_processor.records import record, rows_of
from tests.agentevolver.llm.faulty_server import FaultyServer, Said
from tests.answers import without_examples

pytestmark = pytest.mark.service

GROUPS, ROLLOUTS, STEPS = 4, 4, 5
ALL = GROUPS * ROLLOUTS


def honest(number, body):
    return Said(as_json(labels_for(without_examples(body["messages"]))))


def trajectories():
    """GROUPS x ROLLOUTS rollouts, none like another; the odd ones failed."""
    draw = random.Random(5)
    return [
        record(
            f"g{g}",
            r,
            score=float(r % 2 == 0),
            actions=[f"{draw.choice(('good', 'bad'))} {g}.{r}.{k}" for k in range(STEPS)],
        )
        for g in range(GROUPS)
        for r in range(ROLLOUTS)
    ]


async def training_step(script, *, timeout_s=5.0):
    """Label a step's rollouts, then make advantages; returns records, result, and the bodies that were asked."""
    settings, records = AttributionSettings(enable=True), trajectories()
    async with FaultyServer(script) as server:
        llm = LLMSettings(
            base_url=server.url, model="judge", api_key_env=None, tries=2, timeout_s=timeout_s, price_in=1.0
        )
        llm = judge_settings(llm, settings)
        async with LLM(llm, patience_s=0.5) as client:
            attributor = Attributor(settings, client, group_size=ROLLOUTS, endpoint=llm.endpoint(Role.ATTRIBUTOR))
            labels = asyncio.gather(*(attributor.label_steps(data, step=1) for data in records))
            found = await asyncio.wait_for(labels, 60)
    for data, attribution in zip(records, found, strict=True):
        data.attribution = Attribution.from_dict(json.loads(json.dumps(attribution.to_dict())))
    keys, ids = rows_of(records)
    batch = make_batch(1, records, keys, pad_step_ids(ids, max(map(len, ids))))
    return records, Processor(settings).process(batch), [request.body for request in server.requests]


def assert_outcome_credit_alone(records, advantages):
    for data, row in zip(records, advantages, strict=True):
        assert row.tolist() == pytest.approx([1.0 if data.outcome.score else -1.0] * STEPS)


async def test_an_honest_judge_labels_everything(caplog):
    records, result, asked = await training_step(honest)
    for data in records:
        assert data.attribution.good == tuple(step.action.startswith("good") for step in data.steps)
    assert not caplog.messages
    assert (result.metrics["prm/labelled"], result.metrics["prm/calls"]) == (ALL, ALL) == (len(asked), ALL)
    assert result.metrics["prm/cost"] == pytest.approx(ALL * 10 / 1e6)
    assert all(body["temperature"] == 0.0 and body["model"] == "judge" for body in asked)


FAULTS = {
    "slow": (Said(manner="hang"), 0.1, "timeout"),
    "asking for an hour of patience": (Said(status=429, headers={"Retry-After": "3600"}), 5.0, "unavailable"),
    "refusing the key": (Said(status=401), 5.0, "refused"),
    "breaking off": (Said(manner="cut"), 5.0, "unavailable"),
    "in prose": (Said("The agent did GOOD work, nothing BAD about it."), 5.0, "reply"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_faulty_judge_leaves_outcome_credit_and_is_seen(fault, caplog):
    said, timeout_s, kind = FAULTS[fault]
    records, result, _ = await training_step([said], timeout_s=timeout_s)
    assert_outcome_credit_alone(records, result.advantages)
    metrics = result.metrics
    assert metrics["prm/unlabelled"] == metrics["prm/failed"] == ALL
    assert metrics[f"prm/failed/{kind}"] + metrics.get("prm/failed/paused", 0.0) == ALL
    (told,) = [message for message in caplog.messages if "is not labelled" in message]
    assert kind in told


async def test_a_judge_that_fails_half_the_time_labels_the_other_half():
    def half(number, body):
        return Said("prose") if " 1." in without_examples(body["messages"])[1]["content"] else honest(number, body)

    records, result, _ = await training_step(half)
    labelled = [data.attribution.status is LabelStatus.LABELLED for data in records]
    assert labelled == [data.group_id != "g1" for data in records]
    assert result.metrics["prm/parse_success_rate"] == 0.75
    assert_outcome_credit_alone(records[4:8], result.advantages[4:8])

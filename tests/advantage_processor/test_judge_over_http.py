import asyncio
import json
import random

import pytest
import torch
from aiohttp import web

from advantage_processor import AttributionSettings
from advantage_processor.attributor import Attributor, judge_settings
from advantage_processor.batch import make_batch, pad_step_ids
from advantage_processor.pipeline import Processor
from agentevolver.llm import LLM, LLMSettings, Role
from agentevolver.types import Attribution, LabelStatus
from tests.advantage_processor.judges import as_json, labels_for
from tests.advantage_processor.records import record, rows_of

pytestmark = pytest.mark.service

GROUPS, ROLLOUTS, STEPS = 4, 4, 5
BREAK_OFF = object()


def completion(text):
    message = {"role": "assistant", "content": text}
    return web.json_response(
        {
            **{"id": "x", "object": "chat.completion", "created": 0, "model": "judge"},
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940},
        }
    )


class FaultyJudge:
    """An OpenAI-compatible server whose answer is `behave(self, messages)`: a response, or a completion's text."""

    def __init__(self, behave):
        self.behave = behave
        self.requests = 0
        self.seen = []

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _answer(self, request):
        self.requests += 1
        body = await request.json()
        self.seen.append(body)
        answer = self.behave(self, body["messages"])
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer is BREAK_OFF:
            response = web.StreamResponse(headers={"Content-Length": "5000"})
            await response.prepare(request)
            await response.write(b'{"choices": [')
            request.transport.close()
            return response
        return answer if isinstance(answer, web.StreamResponse) else completion(answer)


def honest(server, messages):
    return as_json(labels_for(messages))


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


async def training_step(url, *, tries=2, timeout_s=5.0, patience_s=0.5, **section):
    """Label a step's rollouts, then make advantages; returns records, result, and the client's metrics."""
    settings = AttributionSettings(enable=True, **section)
    llm_settings = judge_settings(
        LLMSettings(
            base_url=url,
            model="judge",
            api_key_env=None,
            tries=tries,
            timeout_s=timeout_s,
            price_in=1.0,
        ),
        settings,
    )
    records = trajectories()
    async with LLM(llm_settings, patience_s=patience_s) as llm:
        attributor = Attributor(settings, llm, group_size=ROLLOUTS, endpoint=llm_settings.endpoint(Role.ATTRIBUTOR))
        found = await asyncio.wait_for(asyncio.gather(*(attributor.label_steps(data, step=1) for data in records)), 60)
        llm_metrics = llm.metrics()
    for data, attribution in zip(records, found, strict=True):
        data.attribution = Attribution.from_dict(json.loads(json.dumps(attribution.to_dict())))
    keys, ids = rows_of(records)
    batch = make_batch(1, records, keys, pad_step_ids(ids, max(map(len, ids))))
    result = Processor(settings).process(batch)
    assert bool(result.advantages.isfinite().all())
    return records, result, llm_metrics


def assert_outcome_credit_alone(records, result):
    for data, row in zip(records, result.advantages, strict=True):
        assert row.tolist() == pytest.approx([1.0 if data.outcome.score else -1.0] * STEPS)


ALL = GROUPS * ROLLOUTS


async def test_an_honest_judge_labels_everything(caplog):
    async with FaultyJudge(honest) as server:
        records, result, _ = await training_step(server.url)
    for data in records:
        assert data.attribution.good == tuple(step.action.startswith("good") for step in data.steps)
    assert not caplog.messages
    metrics = result.metrics
    assert (metrics["prm/labelled"], metrics["prm/calls"], metrics["prm/unlabelled"]) == (ALL, ALL, 0.0)
    assert metrics["prm/parse_success_rate"] == metrics["prm/labelled_rate"] == 1.0
    assert metrics["prm/cost"] == pytest.approx(ALL * 900 / 1e6)
    assert server.requests == ALL
    assert all(body["temperature"] == 0.0 and body["model"] == "judge" for body in server.seen)


def page(status, **headers):
    return lambda server, messages: web.Response(status=status, text="<html>no</html>", headers=headers)


async def hangs(server, messages):
    await asyncio.sleep(30)


FAULTS = {
    "slow": (lambda server, messages: hangs(server, messages), {"timeout_s": 0.1, "tries": 1}, "timeout"),
    "failing with 500": (page(500), {}, "unavailable"),
    "asking for an hour of patience": (page(429, **{"Retry-After": "3600"}), {}, "unavailable"),
    "refusing the key": (page(401), {}, "refused"),
    "breaking off": (lambda server, messages: BREAK_OFF, {}, "unavailable"),
    "in prose": (lambda server, messages: "The agent did GOOD work, nothing BAD about it.", {}, "reply"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_faulty_judge_leaves_outcome_credit_and_is_seen(fault, caplog):
    behave, options, kind = FAULTS[fault]
    async with FaultyJudge(behave) as server:
        records, result, llm_metrics = await training_step(server.url, **options)
    assert_outcome_credit_alone(records, result)
    metrics = result.metrics
    assert metrics["prm/unlabelled"] == metrics["prm/failed"] == ALL
    assert metrics[f"prm/failed/{kind}"] + metrics.get("prm/failed/paused", 0.0) == ALL
    assert metrics["prm/labelled_rate"] == 0.0
    told = [message for message in caplog.messages if "is not labelled" in message]
    assert len(told) == 1 and kind in told[0]
    if kind == "reply":
        assert metrics["prm/parse_success_rate"] == 0.0 and metrics["prm/repairs"] == ALL
    else:
        assert "prm/parse_success_rate" not in metrics
        assert llm_metrics["llm/attributor/errors"] > 0


async def test_a_judge_that_is_overloaded_at_first_labels_everything_in_the_end():
    def sometimes(server, messages):
        return (
            web.Response(status=429, headers={"Retry-After": "0"}) if server.requests % 2 else honest(server, messages)
        )

    async with FaultyJudge(sometimes) as server:
        _, result, _ = await training_step(server.url, tries=12, patience_s=50.0, concurrent=2)
    assert result.metrics["prm/labelled"] == ALL


async def test_a_judge_that_fails_half_the_time_labels_the_other_half():
    def half(server, messages):
        return (
            "prose" if "g1" in messages[1]["content"] or " 1." in messages[1]["content"] else honest(server, messages)
        )

    async with FaultyJudge(half) as server:
        records, result, _ = await training_step(server.url)
    labelled = [data.attribution.status is LabelStatus.LABELLED for data in records]
    assert labelled == [data.group_id != "g1" for data in records]
    assert result.metrics["prm/parse_success_rate"] == 0.75
    assert_outcome_credit_alone(records[4:8], type("Rows", (), {"advantages": result.advantages[4:8]}))
    assert not torch.allclose(result.advantages[0], result.advantages[0].mean())

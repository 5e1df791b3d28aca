"""What reads rollouts reads those of the user's agent as any others: credit, the judge's prompt, distilling, verl's
rows, metrics."""

import asyncio
import json
from dataclasses import asdict

import pytest
import torch

from advantage_processor import AttributionSettings
from advantage_processor.attributor import Attributor
from advantage_processor.batch import make_batch
from agentevolver.rollout.rows import to_outputs, to_row
from agentevolver.trainer.gateway import ForkWatch, fork_warning
from agentevolver.trainer.metrics import rollout_metrics
from agentevolver.types import LabelStatus, RowKey, StopReason, Trajectory
from examples.agents.react import play as react
from tests.advantage_processor.judges import FakeJudge
from tests.agentevolver.rollout.agents import EchoEnv, ask, roll

pytestmark = pytest.mark.service
ROW = {"uid": "g", "session_id": 0, "index": 0, "data_source": "fake", "reward_model": {}, "global_steps": 7}
TIMES = ("generate_s", "env_s")


async def retelling(task, endpoint, world):
    """Say something else first in every call, so that each is a chain."""
    for number in range(3):
        await ask(endpoint, [{"role": "user", "content": f"it is {number} o'clock"}])
        await world.step(f"act {number}")


def told(trajectory):
    """Return a record without times, and without what only a gateway tells."""
    record = trajectory.to_dict()
    record["steps"] = [{k: v for k, v in step.items() if k not in TIMES} for step in record["steps"]]
    return {key: value for key, value in record.items() if key not in ("seconds", "gateway")}


def test_the_record_is_that_of_the_built_in_flow(chatml):
    flow, agent = roll(chatml, None), roll(chatml, react)
    assert told(agent.trajectory) == told(flow.trajectory)
    assert agent.trajectory.gateway["chains"] == 1 and flow.trajectory.gateway is None
    assert "gateway" not in flow.trajectory.to_dict()


@pytest.mark.parametrize("agent", [react, retelling])
def test_rows_and_credit_have_every_sampled_token_at_its_step(chatml, agent):
    rollout = roll(chatml, agent)
    trajectory, outputs = rollout.trajectory, to_outputs(rollout, chatml.eos_token_id, 6, validation=False)
    assert len(outputs) == trajectory.gateway["chains"]
    assert sum(sample.share for sample in rollout.samples) == pytest.approx(1.0)
    fields = [to_row(output, ROW)[0] for output in outputs]
    assert Trajectory.from_dict(fields[-1]["extra_fields"]["trajectory"]) == trajectory
    longest = max(len(output.response_ids) for output in outputs)
    ids = torch.full((len(outputs), longest), -1)
    for row, output in enumerate(outputs):
        ids[row, : len(output.response_ids)] = torch.tensor(output.extra_fields["step_ids"])
    keys = [str(RowKey("g", 0, row)) for row in range(len(outputs))]
    batch = make_batch(7, [trajectory], keys, ids)
    assert batch.valid.tolist() == [True] and batch.lengths.tolist() == [len(trajectory.steps)]
    sampled = [int((ids == step.index).sum()) for step in trajectory.steps]
    assert sampled == [step.action_tokens for step in trajectory.steps]


async def test_the_judge_labels_every_step(chatml):
    judge = FakeJudge()
    trajectory = (await asyncio.to_thread(roll, chatml, retelling)).trajectory
    attributor = Attributor(AttributionSettings(enable=True), judge, group_size=8)
    found = await attributor.label_steps(trajectory, step=1)
    assert found.status is LabelStatus.LABELLED and len(found.good) == len(trajectory.steps) == 3


def test_metrics_count_chains_calls_and_what_had_no_effect(chatml):
    async def agent(task, endpoint, world):
        await ask(endpoint, world.messages, temperature=0.1, seed=3, response_format={"type": "json_object"})
        await world.step("done")

    trajectories = [roll(chatml, one).trajectory for one in (agent, retelling)]
    metrics = rollout_metrics(trajectories, 1.0)
    assert metrics["gateway/chains_per_rollout"] == 2.0 and metrics["gateway/calls_per_rollout"] == 2.0
    assert metrics["gateway/ignored/temperature"] == metrics["gateway/ignored/seed"] == 1.0
    assert metrics["gateway/structured_per_rollout"] == 0.5
    assert metrics["gateway/refused"] == 0.0 and "rollout/stop_reason/agent_error" in metrics
    assert not any(name.startswith("gateway/") for name in rollout_metrics([roll(chatml, None).trajectory], 1.0))


def test_a_failed_agent_is_counted_as_such(chatml):
    async def agent(task, endpoint, world):
        raise RuntimeError("no")

    trajectory = roll(chatml, agent).trajectory
    metrics = rollout_metrics([trajectory], 1.0)
    assert metrics["rollout/stop_reason/agent_error"] == metrics["rollout/failed"] == 1.0
    assert trajectory.stop_reason is StopReason.AGENT_ERROR and json.dumps(asdict(trajectory.task))


def test_an_agent_that_retells_is_warned_of_once(chatml, caplog):
    many, one = roll(chatml, retelling).trajectory, roll(chatml, react, EchoEnv(length=3)).trajectory
    assert fork_warning([one]) is None and fork_warning([]) is None
    warning = fork_warning([many])
    assert "3.0 chains a rollout" in warning
    assert 'First at message 1: "user: it is 0 o\'clock" became "user: it is 1 o\'clock"' in warning
    watch = ForkWatch()
    for _ in range(3):
        watch.look([many])
    assert [record.message for record in caplog.records] == [warning]

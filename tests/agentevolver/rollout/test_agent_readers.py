"""What reads rollouts reads those of the user's agent as any others: credit, the judge's prompt, distilling, verl's
rows, metrics."""

import pytest
import torch

from advantage_processor.batch import make_batch
from agentevolver.rollout.rows import to_outputs, to_row
from agentevolver.trainer.metrics import rollout_metrics
from agentevolver.types import RowKey, Trajectory
from examples.agents.react import play as react
from tests.agentevolver.rollout.agents import ask, roll

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

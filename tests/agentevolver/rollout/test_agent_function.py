"""A function of the user's plays rollouts: the same tokens as the built-in flow, graded, recorded and stripped alike."""

import asyncio
import json
import threading
import time

import pytest

from agentevolver.engine import EngineError
from agentevolver.rollout.agent import AgentFailed, Result, described, result_of
from agentevolver.types import Outcome, StopReason, Task
from context_manager.template import ContextLimits
from env_service.client import EnvServiceError
from examples.agents.react import play as react
from experience_manager.guide import Guidance, inject
from tests.agentevolver.rollout.agents import LIMITS, TASK, EchoEnv, SeededEngine, roll

pytestmark = pytest.mark.service
SAMPLE = ("prompt_ids", "response_ids", "response_mask", "log_probs", "step_ids", "share", "trajectory_id")


def same(one, other):
    """Assert that two rollouts gave the same samples and the same record but for times."""
    assert [[getattr(s, n) for n in SAMPLE] for s in one.samples] == [
        [getattr(s, n) for n in SAMPLE] for s in other.samples
    ]
    assert one.trajectory.messages == other.trajectory.messages
    assert one.trajectory.stop_reason is other.trajectory.stop_reason
    assert one.trajectory.outcome == other.trajectory.outcome and one.versions == other.versions
    for mine, theirs in zip(one.trajectory.steps, other.trajectory.steps, strict=True):
        for name in ("index", "action", "observation", "reward", "prompt_tokens", "action_tokens", "truncated", "kind"):
            assert getattr(mine, name) == getattr(theirs, name), name


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("length", "limits"), [(4, LIMITS), (99, LIMITS), (99, ContextLimits(200, 150, 350, 24, 8))])
def test_the_built_in_flow_as_an_agent_gives_the_same_ids(chatml, seed, length, limits):
    flow = roll(chatml, None, EchoEnv(length), seed=seed, limits=limits)
    agent = roll(chatml, react, EchoEnv(length), seed=seed, limits=limits)
    assert len(flow.samples) == 1 and sum(flow.samples[0].response_mask) > 10
    same(agent, flow)


def test_the_three_ends_of_the_flow_are_met():
    ends = {StopReason.FINISHED, StopReason.MAX_STEPS, StopReason.CONTEXT_FULL}
    assert {reason for reason in StopReason if reason.happened} == ends

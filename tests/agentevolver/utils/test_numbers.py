"""Numbers of Python, NumPy and torch mean the same wherever code of the user's returns them."""

import asyncio
import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from agentevolver.rollout.agent import AgentFailed, Result, result_of
from agentevolver.trainer.monitor.log import RunLog
from agentevolver.trainer.reward_stages import RewardStageError, _checked
from agentevolver.types import Outcome, Reward, StopReason, Task, Trajectory
from agentevolver.utils.numbers import number
from env_service.contract import ContractError, checked_score, checked_step
from env_service.hosting.wire import pack
from task_manager.graders import Graders, GradingError
from task_manager.graders.registry import GRADERS, GraderContext
from task_manager.settings import GraderSettings

USER = {"role": "user", "content": "hi"}
TASK = Task("t", "pocket", evaluator="own")
HALVES = [
    0.5, np.float64(0.5), np.float32(0.5), np.float16(0.5), np.longdouble(0.5), np.array(0.5), np.array([0.5]),
    np.array([[0.5]], dtype=np.float32), torch.tensor(0.5), torch.tensor([0.5], dtype=torch.bfloat16),
    torch.tensor(0.5, requires_grad=True), torch.nn.Parameter(torch.tensor(0.5)), Fraction(1, 2), Decimal("0.5"),
]  # fmt: skip
ONES = [
    1,
    np.int64(1),
    np.uint8(1),
    np.bool_(True),
    torch.tensor(1),
    torch.tensor(True),
    1 + 2e-16,
    np.float32(1.0000001),
]
NONE = [
    "0.5", b"0.5", float("nan"), -math.inf, np.float32("nan"), np.array([0.5, 0.5]), np.array([]), np.array("0.5"),
    torch.tensor([0.1, 0.2]), torch.empty((), device="meta"), 0.5j, (0.5, "reason"), {"score": 0.5}, Decimal("sNaN"),
    10**400, np.datetime64("2026-01-01"), float, object(),
]  # fmt: skip


async def graded(value):
    class Own:
        async def grade(self, *_):
            return Outcome(value, True)

    GRADERS["own"] = lambda context: Own()
    try:
        return (await Graders(GraderContext(GraderSettings(), None)).grade(TASK, None, None, "i")).score
    finally:
        del GRADERS["own"]


def rewarded(value):
    trajectory = Trajectory(TASK, "a", 0, [], [], StopReason.FINISHED, Outcome(1.0, True))
    (reward,) = _checked("own", [Reward(value, {"part": value})], [trajectory])
    assert json.loads(json.dumps(reward.to_dict())) == {"score": reward.score, "parts": {"part": reward.score}}
    return reward.score


READERS = {
    "agent": (lambda value: result_of(value).score, AgentFailed),
    "agent's result": (lambda value: result_of(Result(value)).score, AgentFailed),
    "environment's score": (checked_score, ContractError),
    "environment's reward": (
        lambda value: checked_step({"state": [USER], "reward": value, "is_terminated": False, "info": {}})["reward"],
        ContractError,
    ),
    "grader": (lambda value: asyncio.run(graded(value)), GradingError),
    "reward stage": (rewarded, RewardStageError),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_number_is_read_alike_by_every_reader(reader):
    read, refusal = READERS[reader]
    for value in (*HALVES, *ONES):
        assert type(read(value)) in (float, int)
        assert read(value) == pytest.approx(0.5 if any(value is half for half in HALVES) else 1, abs=1e-6)
    for value in NONE:
        with pytest.raises(refusal):
            read(value)


def test_metrics_are_numbers_of_python_and_what_is_none_is_left_out(tmp_path):
    class Backend:
        def log(self, data, step):
            self.data = data

    backend = Backend()
    values = {f"a/{i}": value for i, value in enumerate((*HALVES, *ONES))}
    RunLog(tmp_path, backend).log({**values, **{f"no {i}": value for i, value in enumerate((None, *NONE))}}, 1)
    assert backend.data.keys() == values.keys() and {type(value) for value in backend.data.values()} == {float, int}
    assert number(np.int64(3)) == 3 and type(number(np.int64(3))) is int and number(10**400) is None


def test_what_an_environment_says_of_its_end_may_be_numpys_and_its_info_holds_arrays():
    told = {"finished": np.bool_(True), "refused": torch.tensor(False)}
    step = {"state": [USER], "reward": np.float32(1), "is_terminated": np.bool_(True), "info": told}
    checked = checked_step(step)
    assert checked["is_terminated"] is True and checked["info"] == {"finished": True, "refused": False}
    seen = {"a": np.array(1.5), "b": torch.tensor([1, 2]), "c": np.float16(0.5), "d": np.array([[1.0]]).T}
    assert json.loads(pack(seen)) == {"a": 1.5, "b": [1, 2], "c": 0.5, "d": [[1.0]]}
    with pytest.raises(TypeError):
        pack({"a": object()})

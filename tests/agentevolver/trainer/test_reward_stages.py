import json

import pytest
import torch
from tensordict import TensorDict

from advantage_processor.settings import StageSettings
from agentevolver.config.checks import load
from agentevolver.trainer import batch as rows
from agentevolver.trainer.batch import put_scores, scale_synthetic
from agentevolver.trainer.job.main import check_stages
from agentevolver.trainer.reward_stages import Rewards, RewardStageError, RewardStages
from agentevolver.types import Reward, Trajectory
from agentevolver.utils.errors import ConfigError
from tests.agentevolver.config.test_checks import BASIC, MODEL
from tests.agentevolver.trainer.memory_queue import Queue, column
from tests.trajectories import trajectory

SETTINGS = object()


class LessTheMean:
    """A stage of a user's own: the score less the mean of the step, times a factor."""

    def __init__(self, settings, *, times=1.0):
        assert settings is not None
        self.times = times

    def __call__(self, trajectories):
        mean = sum(one.score for one in trajectories) / len(trajectories)
        made = [Reward(self.times * (one.score - mean), {"own": one.score, "mean": -mean}) for one in trajectories]
        return Rewards(made, {"seen": float(len(trajectories))})


class Careless:
    """Breaks the contract as it is told to."""

    def __init__(self, settings, *, how):
        self.how = how

    def __call__(self, trajectories):
        if self.how == "short":
            return Rewards([])
        wrong = {"nan": float("nan"), "text": "1", "none": None}[self.how]
        return Rewards([Reward(wrong) for _ in trajectories])


def stage(name, **options):
    return StageSettings(use=f"{__name__}:{name}", **options)


def rollout(name, score):
    group, _, number = name.partition("_")
    outcome = None if score is None else {"score": score, "success": score >= 1}
    return trajectory(group_id=group, rollout_id=int(number), steps=[{"index": 0}], outcome=outcome)


def test_failed_rollouts_take_no_part_and_the_record_keeps_both():
    told = [rollout("a_0", 1.0), rollout("a_1", 0.0), rollout("a_2", None)]
    metrics = RewardStages([stage("LessTheMean", times=2.0)], SETTINGS).apply(told)
    assert metrics["seen"] == 2.0 and metrics["reward/score/mean"] == 0.0
    assert metrics["reward/own/mean"] == 0.5 and metrics["reward/mean/mean"] == -0.5
    assert [one.score for one in told] == [1.0, -1.0, None]
    assert told[2].reward is None
    record = json.loads(json.dumps(told[0].to_dict()))
    assert record["outcome"]["score"] == 1.0
    assert record["reward"] == {"score": 1.0, "parts": {"own": 1.0, "mean": -0.5}}
    again = Trajectory.from_dict(record)
    assert again.score == 1.0 and again.reward == told[0].reward and "reward" not in told[2].to_dict()


def test_a_stage_sees_what_the_one_before_it_made():
    told = [rollout("a_0", 1.0), rollout("a_1", 0.0)]
    RewardStages([stage("LessTheMean", times=2.0), stage("LessTheMean", times=3.0)], SETTINGS).apply(told)
    assert [one.score for one in told] == [3.0, -3.0]
    assert [one.outcome.score for one in told] == [1.0, 0.0]


@pytest.mark.parametrize("how", ["short", "nan", "text", "none"])
def test_a_stage_that_breaks_its_contract_ends_the_run_by_name(how):
    with pytest.raises(RewardStageError, match="Careless"):
        RewardStages([stage("Careless", how=how)], SETTINGS).apply([rollout("a_0", 1.0)])


def queued(told, lengths):
    """A batch of rows, the outcome on the last token of each as the rollout wrote it."""
    old = {}
    for one in told:
        for row, length in enumerate(lengths):
            scores = torch.zeros(length)
            scores[-1] = one.outcome.score if one.outcome else 0.0
            old[f"{one.trajectory_id}_{row}"] = scores
    queue = Queue()
    return queue, queue.kv_batch_put(
        list(old), "train", TensorDict({"rm_scores": column(list(old.values()))}, batch_size=[len(old)])
    )


def test_the_score_stands_on_the_last_token_of_every_row_and_withdrawn_rows_stay(monkeypatch):
    told = [rollout("a_0", 1.0), rollout("a_1", 0.0), rollout("a_2", None)]
    RewardStages([stage("LessTheMean")], SETTINGS).apply(told)
    queue, batch = queued(told, (3, 1))
    monkeypatch.setattr(rows, "tq", queue)
    put_scores(batch, [i for i, key in enumerate(batch.keys) if not key.startswith("a_2")], told)
    found = {key: row["rm_scores"].tolist() for key, row in queue.rows.items()}
    assert found == {
        "a_0_0": [0, 0, 0.5], "a_0_1": [0.5], "a_1_0": [0, 0, -0.5], "a_1_1": [-0.5], "a_2_0": [0, 0, 0], "a_2_1": [0],
    }  # fmt: skip


def test_the_returns_that_a_critic_learns_are_not_scaled(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(rows, "tq", queue)
    made = {name: column([torch.tensor([2.0, value])]) for name, value in (("advantages", 4.0), ("returns", 6.0))}
    batch = queue.kv_batch_put(["g_0_0"], "train", TensorDict(made, batch_size=[1]))
    scale_synthetic(batch, [trajectory(group_id="g", task={"metadata": {"advantage_scale": 0.5}})])
    assert {name: row.tolist() for name, row in queue.rows["g_0_0"].items()} == {
        "advantages": [1.0, 2.0], "returns": [2.0, 6.0],
    }  # fmt: skip


def composed(*overrides):
    return load(BASIC, ["device=cpu", MODEL, *overrides]).settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.reward_stages=[{use: moon}]"], r"trainer.reward_stages: 'moon'.*package.module:Name"),
        (["trainer.row_clips=[{use: moon}]"], r"trainer.row_clips: 'moon'.*package.module:Name"),
    ],
)
def test_what_cannot_be_made_is_refused_before_training(overrides, message):
    settings = composed(*overrides)
    with pytest.raises(ConfigError, match=message):
        check_stages(settings)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["trainer.reward_stages=['a.b:C']", "algorithm.filter_groups.enable=true"],
            "drops groups by the grader's scores",
        ),
        (
            ["trainer.row_clips=['ambiguity']", "actor_rollout_ref.actor.policy_loss.loss_mode=sapo"],
            r"no upper clip by sample.*remove trainer.row_clips",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_when_the_configuration_is_read(overrides, message):
    with pytest.raises(ConfigError, match=message):
        composed(*overrides)

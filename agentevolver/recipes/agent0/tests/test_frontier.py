"""Grading a proposal: real worlds, a scripted executor; nobody who could not be asked is a number."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentevolver.recipes.agent0 import frontier
from agentevolver.recipes.agent0.frontier import FrontierGrader
from agentevolver.recipes.agent0.play import PlayFailed
from agentevolver.recipes.agent0.proposer_reward import ProposerReward
from agentevolver.recipes.agent0.settings import Agent0Settings
from agentevolver.recipes.agent0.tests.players import ScriptedPlayer, answered
from agentevolver.recipes.agent0.types import Play
from agentevolver.trainer.reward_stages import RewardStageError
from agentevolver.types import Outcome, Task
from agentevolver.utils import seeds
from env_service.client import EnvRequestError, EnvUnavailable
from env_service.environments.calc.env import CalcEnv
from env_service.environments.propose.env import ProposeEnv
from task_manager.graders.base import GraderConfigError, GradingError
from task_manager.graders.registry import GraderContext, Graders, make_grader
from task_manager.settings import GraderSettings
from tests.trajectories import trajectory

NAME = "agentevolver.recipes.agent0.frontier:FrontierGrader"
SEED = "calc.left.3.f.00017"
K = 4


class Worlds:
    """The environments in this process, behind what is used of the service's client."""

    def __init__(self) -> None:
        self.open: dict[str, Any] = {}
        self.error: Exception | None = None

    async def create_instance(self, env_type, task_id, instance_id=None, params=None):
        if self.error is not None:
            raise self.error
        made = {"calc": CalcEnv, "propose": ProposeEnv}[env_type](task_id, instance_id, params)
        self.open[instance_id] = made
        return made.get_init_state(None)

    async def step(self, instance_id, action, params=None, step_index=None):
        return self.open[instance_id].step(action, params)

    async def get_tools_info(self, instance_id, messages=None, params=None):
        return self.open[instance_id].get_info(messages, params)

    async def release_instance(self, instance_id):
        return self.open.pop(instance_id, None) is not None


def run_with(**coevolve: Any) -> Any:
    section = {"frozen": "/base", "executor": {"k": K}, **coevolve}
    folder = Path("/run/round_1/proposer")
    return SimpleNamespace(recipe=lambda _: Agent0Settings.model_validate(section), experiment_dir=folder)


def context(run: Any) -> GraderContext:
    return GraderContext(GraderSettings(original_grader=NAME), None, run=run)


async def value_of(question: str) -> str:
    worlds = Worlds()
    await worlds.create_instance("calc", "reference", "r", {"reference": True})
    said = await worlds.step("r", {"role": "assistant", "content": f"run {question}"})
    return str(said["state"][-1]["content"])


def player_of(*answers: str | None, calls: int = 2) -> ScriptedPlayer:
    def script(checkpoint: Path, task: Task, number: int, name: str) -> Play:
        return answered(answers[number % len(answers)], calls=calls)

    return ScriptedPlayer(script)


async def graded(message: str, player: ScriptedPlayer, worlds: Worlds | None = None, **coevolve: Any) -> Outcome:
    worlds = worlds or Worlds()
    await worlds.create_instance("propose", SEED, "i", {})
    await worlds.step("i", {"role": "assistant", "content": message})
    grader = FrontierGrader(context(run_with(**coevolve)), player)
    return await grader.grade(Task(SEED, "propose", evaluator=NAME), trajectory(), worlds, "i")


async def test_a_proposal_is_graded_by_the_share_that_found_what_its_program_gives() -> None:
    right = await value_of("left 3 f 4 g 7")
    wrong = str((int(right) + 1) % 10)
    player = player_of(right, wrong, wrong, None)
    outcome = await graded("<question>left 3 f 4 g 7</question>", player)
    # 0.5 (1 - 2 |.25 - .5|) + 0.05 x 2
    assert outcome.success and outcome.score == pytest.approx(0.25 + 0.1)
    facts = outcome.facts
    assert (facts["p"], facts["calls"], facts["label"]) == (0.25, 2.0, right)
    assert (facts["question"], facts["refused"], facts["world"]) == ("left 3 f 4 g 7", "", "calc")
    assert facts["measured"]["p_vote"] == 0.5 and facts["measured"]["answers"][3] is None
    (checkpoint, task, k, _, validation), *more = player.asked
    assert not more and (checkpoint, k, validation) == ("/base", K, False) and task.env_type == "calc"


async def test_under_the_gate_of_votes_the_majority_is_right_and_no_program_is_run() -> None:
    worlds = Worlds()
    outcome = await graded("<question>left 3 f 4</question>", player_of("1", "2", "2", "2"), worlds, gate="vote")
    assert (outcome.facts["p"], outcome.facts["label"]) == (0.75, "2")
    assert list(worlds.open) == ["i"]


@pytest.mark.parametrize(
    "message", ["left 3 f 4", "<question>left 9 f 4</question>", "<question>read /etc/passwd</question>", ""]
)
async def test_what_is_no_proposal_is_refused_by_name_and_never_played(message: str) -> None:
    player = player_of("1")
    outcome = await graded(message, player)
    assert not outcome.success and outcome.score == 0.0 and not player.asked
    assert outcome.facts["refused"].partition(":")[0] in outcome.reason and outcome.facts["p"] is None


async def test_a_program_without_a_value_makes_no_task() -> None:
    class Elsewhere(Worlds):
        async def get_tools_info(self, instance_id, messages=None, params=None):
            told = await super().get_tools_info(instance_id, messages, params)
            return {**told, "facts": {**told["facts"], "program": "left 3 f"}}

    player, worlds = player_of("1"), Elsewhere()
    outcome = await graded("<question>left 3 f 4</question>", player, worlds)
    assert outcome.facts["refused"].startswith("unexecutable") and not outcome.success and not player.asked


async def test_an_executor_that_cannot_be_played_is_a_grading_error_and_not_a_number() -> None:
    player = player_of("1")
    player.error = PlayFailed("no env")
    with pytest.raises(GradingError, match=r"left 3 f 4.*could not be measured"):
        await graded("<question>left 3 f 4</question>", player)


async def test_a_service_that_fails_while_the_program_runs_is_no_verdict_on_it() -> None:
    worlds, player = Worlds(), player_of("1")
    await worlds.create_instance("propose", SEED, "i", {})
    await worlds.step("i", {"role": "assistant", "content": "<question>left 3 f 4</question>"})
    worlds.error = EnvUnavailable("gone", url="/create", instance_id="i")
    with pytest.raises(EnvUnavailable):
        await FrontierGrader(context(run_with()), player).grade(Task(SEED, "propose"), trajectory(), worlds, "i")


async def test_a_world_that_does_not_tell_what_was_proposed_is_a_grading_error() -> None:
    class Silent(Worlds):
        async def get_tools_info(self, instance_id, messages=None, params=None):
            raise EnvRequestError("no such question", url="/get_info", instance_id=instance_id)

    class Other(Worlds):
        async def get_tools_info(self, instance_id, messages=None, params=None):
            return {"facts": {"question": "x"}}

    for worlds in (Silent(), Other()):
        with pytest.raises(GradingError):
            await graded("<question>left 3 f 4</question>", player_of("1"), worlds)


async def test_equal_rollouts_ask_for_equal_draws_and_others_for_others() -> None:
    player = player_of("1")
    message = "<question>left 3 f 4</question>"
    for rollout in (0, 0, 1):
        with seeds.drawing(7, "group", rollout):
            await graded(message, player)
    first, again, other = (asked[3] for asked in player.asked)
    assert first == again != other


async def test_it_plays_by_the_configuration_of_the_rounds_above_its_training(monkeypatch: Any) -> None:
    right = await value_of("left 3 f 4")
    asked: list[Path] = []

    def made(experiment: Path, client: Any) -> ScriptedPlayer:
        asked.append(experiment)
        return player_of(right, "x", "x", "x")

    monkeypatch.setattr(frontier, "player_of", made)
    graders, worlds = Graders(context(run_with())), Worlds()
    for i in range(2):
        await worlds.create_instance("propose", SEED, f"i{i}", {})
        await worlds.step(f"i{i}", {"role": "assistant", "content": "<question>left 3 f 4</question>"})
        outcome = await graders.grade(Task(SEED, "propose", evaluator=NAME), trajectory(), worlds, f"i{i}")
        assert outcome.facts["p"] == 0.25
    assert asked == [Path("/run")], "one player for all proposals"


def test_a_run_without_a_frozen_executor_is_refused_before_training() -> None:
    for run in (None, run_with(frozen=None)):
        with pytest.raises(GraderConfigError, match=r"recipes.agent0.frozen names no executor"):
            make_grader(NAME, context(run))
    with pytest.raises(GraderConfigError, match="cannot be imported"):
        make_grader("agentevolver.recipes.agent0.frontier:NoSuch", context(run_with()))


# ---- the whole reward ----


def graded_as(rollout_id: int, **facts: Any):
    told = {"question": "", "refused": "", "calls": 0.0, **facts}
    return trajectory(
        group_id="g",
        rollout_id=rollout_id,
        task={"task_id": SEED},
        outcome={"score": 0.0, "success": not told["refused"], "facts": told},
    )


def test_the_reward_of_a_batch_by_hand() -> None:
    """Two of four are one cluster; .5 (1 - 2 |p - .5|) + .05 min(calls, 4) - share, and -1 for what is malformed."""
    twins = [f"left 3 f 4 g {number} h 2 m 6 f 1 g 8 h 3 m 5 f" for number in (1, 2)]
    batch = [
        graded_as(0, question=twins[0], p=0.5, calls=6.0),
        graded_as(1, question=twins[1], p=0.25, calls=1.0),
        graded_as(2, question="right 9 m 9 m 9 m 9 m 9", p=1.0, calls=0.0),
        graded_as(3, refused="malformed: no tags", p=None),
    ]
    rewards = ProposerReward(run_with())(batch)
    expected = [0.5 + 0.2 - 0.5, 0.25 + 0.05 - 0.5, 0.0 + 0.0 - 0.25, -1.0]
    assert [reward.score for reward in rewards.rewards] == pytest.approx(expected)
    for reward in rewards.rewards:
        assert sum(reward.parts.values()) == pytest.approx(reward.score)
    assert rewards.rewards[0].parts == pytest.approx(
        {"uncertainty": 0.5, "tool": 0.2, "repetition": -0.5, "malformed": 0.0}
    )
    metrics = rewards.metrics
    assert metrics["proposer/well_formed"] == 0.75 and metrics["proposer/refused/malformed"] == 0.25
    assert metrics["proposer/p/mean"] == pytest.approx(1.75 / 3)


@pytest.mark.parametrize("missing", [{"p": None}, {"p": 0.5, "calls": None}, {}])
def test_a_proposal_that_was_not_measured_has_no_reward(missing: dict[str, Any]) -> None:
    with pytest.raises(RewardStageError, match="what was not measured has no reward"):
        ProposerReward(run_with())([graded_as(0, question="left 3 f 4", **missing)])


def test_rollouts_that_nobody_graded_as_proposals_are_refused() -> None:
    other = trajectory(group_id="g", rollout_id=0, outcome={"score": 1.0, "success": True})
    with pytest.raises(RewardStageError, match=r"g_0 was not graded as a proposal.*original_grader"):
        ProposerReward(run_with())([other])

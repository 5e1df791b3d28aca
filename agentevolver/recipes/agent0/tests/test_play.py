"""Playing a task: what a play is read of, that it follows from its name, and every way to fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentevolver.config.checks import load
from agentevolver.config.load import resolved_tree
from agentevolver.recipes.agent0.play import FrozenPlayer, PlayFailed, StateGrader
from agentevolver.recipes.agent0.settings import PROPOSE_ENV
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.rollout.rollout import Rollout
from agentevolver.trainer.job.frozen_engine import sampling_of
from agentevolver.trainer.verl_plugin import agent_loop
from agentevolver.types import Outcome, StopReason, Task, Trajectory
from agentevolver.utils import seeds
from env_service.client import EnvServiceError

TASK = Task("t", "calc", metadata={"validation": True})


class ToldRunner:
    """Ends episodes as `told` says, each with its own seed in the answer; `most` is how many ran at once."""

    def __init__(self) -> None:
        self.told: dict[int, tuple[StopReason, str]] = {}
        self.tasks: list[Task] = []
        self.sampling: list[dict[str, Any]] = []
        self.running = self.most = self.cancelled = 0

    async def run(
        self, task: Task, group_id: str, rollout_id: int, sampling: dict[str, Any], env_params: dict[str, Any]
    ) -> Rollout:
        self.tasks.append(task)
        self.sampling.append(sampling)
        self.running += 1
        self.most = max(self.most, self.running)
        draws = seeds.current()
        assert draws is not None
        try:
            await asyncio.sleep(0.01 * rollout_id)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        reason, error = self.told.get(rollout_id, (StopReason.FINISHED, ""))
        facts = {"answer": str(draws.seed("policy")), "calls": 2, "state": {"calls": 2}}
        outcome = Outcome(1.0, True, facts=facts) if reason is StopReason.FINISHED else None
        return Rollout(Trajectory(task, group_id, rollout_id, [], [], reason, outcome, 3, error), [])


def player_with(*overrides: str) -> FrozenPlayer:
    own = ("device=cpu", "env_service.env_type=calc", f"actor_rollout_ref.model.path={seed_policy_path()}")
    loaded = load(None, [*own, *overrides])
    client: Any = None
    return FrozenPlayer(resolved_tree(loaded.config), loaded.settings, client)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ToldRunner:
    made = ToldRunner()
    monkeypatch.setattr(agent_loop, "make_runner", lambda *_, **__: made)
    return made


@pytest.mark.thorough
async def test_plays_are_drawn_by_name_and_number_alone(runner: ToldRunner) -> None:
    player = player_with("actor_rollout_ref.rollout.max_env_worker=3")
    one = await player.play("/base", TASK, 3, "a")
    assert (await player.play("/base", TASK, 5, "a"))[:3] == one
    answers = {play.answer for name in "ab" for play in await player.play("/base", TASK, 3, name)}
    assert len(answers) == 6
    assert one[0].calls == 2 and one[0].success and one[0].facts == {"calls": 2}
    await asyncio.gather(*(player.play("/base", TASK, 4, str(i)) for i in range(4)))
    assert runner.most == 3
    # A task that is marked as validation would be graded by the environment, without its state.
    assert not any(task.is_validation for task in runner.tasks)


@pytest.mark.thorough
@pytest.mark.parametrize("reason", [StopReason.ENV_ERROR, StopReason.LLM_ERROR, StopReason.GRADING_ERROR])
async def test_an_episode_that_did_not_happen_fails_the_call_and_ends_the_others(
    runner: ToldRunner, reason: StopReason
) -> None:
    runner.told = {1: (reason, "nobody is there")}
    with pytest.raises(PlayFailed, match=r"episode 1 of task t by /base: .* after 3 attempts: nobody is there"):
        await player_with().play("/base", TASK, 30, "a")
    assert runner.running == 0 and runner.cancelled > 0


@pytest.mark.thorough
async def test_an_opening_that_fills_the_context_is_an_episode_without_an_answer(runner: ToldRunner) -> None:
    runner.told = {0: (StopReason.CONTEXT_FULL, "the opening has 900 tokens")}
    (play,) = await player_with().play("/base", TASK, 1, "a")
    assert (play.answer, play.calls, play.score, play.success) == (None, 0, 0.0, False)
    assert play.facts == {"never_acted": "the opening has 900 tokens"}


@pytest.mark.thorough
async def test_a_proposer_plays_with_its_own_keys_and_an_executor_with_its_own(runner: ToldRunner) -> None:
    override = "{env_service.env_params: {verbose: true}, actor_rollout_ref.rollout.temperature: 0.7}"
    player = player_with(
        f"recipes.agent0.proposer.override={override}",
        *("env_service.env_params={max_steps: 9}", "actor_rollout_ref.rollout.val_kwargs.temperature=0.3"),
    )
    for task in (Task("seed", PROPOSE_ENV), TASK):
        await player.play("/base", task, 1, "a")
    await player.play("/base", TASK, 1, "a", validation=True)
    assert [one["temperature"] for one in runner.sampling] == [0.7, 1.0, 0.3]
    _, proposing = player._view(PROPOSE_ENV)
    assert proposing.env_service.env_types == (PROPOSE_ENV,) and proposing.rollout.max_steps == 1
    assert proposing.environment(PROPOSE_ENV).params(validation=False) == {"verbose": True}
    config, executing = player._view("calc")
    assert executing.environment("calc").params(validation=False) == {"max_steps": 9}
    assert sampling_of(config)["repetition_penalty"] == 1.0


class ToldWorld:
    def __init__(self, score: Any, state: Any) -> None:
        self.score, self.state = score, state

    async def evaluate(self, instance_id: str, messages: Any = None, params: Any = None) -> Any:
        return self.score

    async def get_tools_info(self, instance_id: str, messages: Any = None, params: Any = None) -> Any:
        assert params == {"what": "state"}
        return self.state


class Said:
    messages = ({"role": "user", "content": "left 3 f 4"},)
    steps = ("calc 3 f 4", "answer 9")


async def grade(score: Any, state: Any) -> Outcome:
    return await StateGrader().grade(TASK, Said(), ToldWorld(score, state), "i")  # type: ignore[arg-type]


async def test_a_play_is_the_environments_grade_and_its_state() -> None:
    outcome = await grade(1.0, {"facts": {"calls": 1, "question": "q"}, "answer": "9"})
    assert (outcome.score, outcome.success) == (1.0, True)
    assert outcome.facts == {"answer": "9", "calls": 1, "state": {"calls": 1, "question": "q"}}
    assert (await grade(0, {"facts": {}, "answer": 9})).facts == {"answer": "9", "calls": 2, "state": {}}
    for score, state in ((None, {}), (2.0, {"facts": {}}), (1.0, None), (1.0, {"facts": None})):
        with pytest.raises(EnvServiceError):
            await grade(score, state)

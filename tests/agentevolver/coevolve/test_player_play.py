"""Playing with an engine that does what it is told: what a play is read of, whose turn it is, and every way to fail."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentevolver.coevolve.player.client import PlayerRefused, PlayerUnavailable, PlayFailed
from agentevolver.coevolve.player.play import FrozenPlayer, StateGrader, sampling_of, settings_for
from agentevolver.coevolve.player.weights import Model, folder_of, identify, local
from agentevolver.config.checks import load
from agentevolver.config.load import resolved_tree
from agentevolver.config.schema import PROPOSE_ENV
from agentevolver.engine import EngineError
from agentevolver.rollout.rollout import Rollout
from agentevolver.types import Outcome, StopReason, Task, Trajectory
from agentevolver.utils import seeds
from env_service.client import EnvServiceError
from tests.agentevolver.coevolve.models import write_model

TASK = Task("t", "calc", metadata={"validation": True})


class ToldEngine:
    """Checks and loads as an engine does, and notes it; `torn` is what it fails to load."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.loads: list[str] = []
        self.torn: set[str] = set()
        self.dead = False

    def check(self, name: str) -> None:
        self.model.check(folder_of(name))

    async def load(self, name: str) -> None:
        await asyncio.sleep(0)
        self.loads.append(folder_of(name).name)
        if folder_of(name).name in self.torn:
            raise EngineError("a tensor is missing")


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


@pytest.fixture(scope="module")
def settings():
    return load(None, ["device=cpu", "env_service.env_type=calc"]).settings


class Made:
    def __init__(self, folder: Path, settings: Any, at_once: int = 64) -> None:
        self.first, self.second = write_model(folder / "first"), write_model(folder / "second")
        self.engine, self.runner = ToldEngine(Model(self.first)), ToldRunner()
        sampling = ({"temperature": 1.0}, {"temperature": 0.5})
        self.player = FrozenPlayer(
            self.engine, {"calc": self.runner}, {"calc": settings}, {"calc": sampling}, self.first, at_once
        )  # type: ignore[dict-item]


@pytest.fixture
def made(tmp_path, settings):
    return Made(tmp_path, settings)


async def test_plays_are_drawn_by_name_and_number_alone(made):
    one = await made.player.play(made.first, TASK, 3, "a")
    await made.player.play(made.first, TASK, 5, "b")
    assert await made.player.play(made.first, TASK, 3, "a") == one
    assert await made.player.play(made.first, TASK, 5, "a") != one
    assert (await made.player.play(made.first, TASK, 5, "a"))[:3] == one
    answers = {play.answer for name in "ab" for play in await made.player.play(made.first, TASK, 3, name)}
    assert len(answers) == 6
    assert one[0].calls == 2 and one[0].success and one[0].facts == {"calls": 2}
    assert made.engine.loads == []


async def test_validation_is_sampled_as_such_and_its_state_is_asked_for_all_the_same(made):
    await made.player.play(made.first, TASK, 1, "a")
    await made.player.play(made.first, TASK, 1, "a", validation=True)
    assert [sampling["temperature"] for sampling in made.runner.sampling] == [1.0, 0.5]
    # A task that is marked as validation is graded by the environment, without its state.
    assert not any(task.is_validation for task in made.runner.tasks)


async def test_another_checkpoint_is_loaded_and_the_same_folder_anew_once_it_was_written(made):
    await made.player.play(made.second, TASK, 1, "a")
    await made.player.play(made.second, TASK, 1, "a")
    write_model(made.second)
    await made.player.play(made.second, TASK, 1, "a")
    await made.player.play(made.first, TASK, 1, "a")
    assert made.engine.loads == ["second", "second", "first"]


async def test_episodes_in_flight_are_bounded(tmp_path, settings):
    made = Made(tmp_path, settings, at_once=3)
    await asyncio.gather(*(made.player.play(made.first, TASK, 4, str(i)) for i in range(4)))
    assert made.runner.most == 3


@pytest.mark.parametrize("reason", [StopReason.ENV_ERROR, StopReason.LLM_ERROR, StopReason.GRADING_ERROR])
async def test_an_episode_that_did_not_happen_fails_the_call_and_ends_the_others(made, reason):
    made.runner.told = {1: (reason, "nobody is there")}
    with pytest.raises(PlayFailed, match=r"episode 1 of task t: .* after 3 attempts: nobody is there"):
        await made.player.play(made.first, TASK, 30, "a")
    assert made.runner.running == 0 and made.runner.cancelled > 0
    made.runner.told = {}
    assert len(await made.player.play(made.second, TASK, 2, "a")) == 2, "it holds no turn any more"


async def test_an_opening_that_fills_the_context_is_an_episode_without_an_answer(made):
    made.runner.told = {0: (StopReason.CONTEXT_FULL, "the opening has 900 tokens")}
    (play,) = await made.player.play(made.first, TASK, 1, "a")
    assert (play.answer, play.calls, play.score, play.success) == (None, 0, 0.0, False)
    assert play.facts == {"never_acted": "the opening has 900 tokens"}


async def test_weights_that_cannot_be_loaded_fail_those_who_asked_and_nobody_else(made):
    made.engine.torn = {"second"}
    with pytest.raises(PlayFailed, match="a tensor is missing"):
        await made.player.play(made.second, TASK, 1, "a")
    assert len(await made.player.play(made.first, TASK, 1, "a")) == 1
    assert made.engine.loads == ["second", "first"], "what a failed load left is not played with"


async def test_an_engine_that_has_died_sends_callers_to_the_next_player(made):
    made.runner.told = {0: (StopReason.LLM_ERROR, "EngineDeadError")}

    async def dies() -> None:
        await asyncio.sleep(0)
        made.engine.dead = True

    dying = asyncio.create_task(dies())
    for _ in range(2):
        with pytest.raises(PlayerUnavailable) as raised:
            await made.player.play(made.first, TASK, 2, "a")
        assert not isinstance(raised.value, PlayFailed)
    await dying


async def test_what_is_no_checkpoint_of_this_model_is_refused_before_anybody_waits(made, tmp_path):
    wider = write_model(tmp_path / "wider", hidden_size=16)
    taller = write_model(tmp_path / "taller", rows=5)
    torn = write_model(tmp_path / "torn")
    (torn / "model.safetensors").write_bytes((torn / "model.safetensors").read_bytes()[:-4])
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = write_model(tmp_path / "bare")
    (bare / "config.json").unlink()
    for folder, why in (
        (wider, "another architecture .* hidden_size is 16, not 8"),
        (taller, r"embed_tokens.weight has the shape \(5, 8\), not \(4, 8\)"),
        (torn, "torn or no safetensors"),
        (empty, "holds no"),
        (bare, "no Hugging Face folder"),
        (tmp_path / "nowhere", "is not there"),
    ):
        with pytest.raises(PlayerRefused, match=why):
            await made.player.play(folder, TASK, 1, "a")
    with pytest.raises(PlayerRefused, match="'pocket' is not one of the run's environments: calc"):
        await made.player.play(made.first, Task("t", "pocket"), 1, "a")
    assert made.engine.loads == [] and not made.runner.tasks


def test_a_folder_is_known_by_what_is_in_it(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    assert local("there") == folder.resolve() and folder_of(identify(local("there"))) == folder.resolve()
    before = identify(folder)
    write_model(folder)
    assert identify(folder) != before


class ToldWorld:
    def __init__(self, score: Any, state: Any) -> None:
        self.score, self.state = score, state

    async def evaluate(self, instance_id, messages=None, params=None):
        return self.score

    async def get_tools_info(self, instance_id, messages=None, params=None):
        assert params == {"what": "state"}
        return self.state


class Said:
    messages = ({"role": "user", "content": "left 3 f 4"},)
    steps = ("calc 3 f 4", "answer 9")


async def grade(score: Any, state: Any) -> Outcome:
    return await StateGrader().grade(TASK, Said(), ToldWorld(score, state), "i")  # type: ignore[arg-type]


async def test_a_play_is_the_environments_grade_and_its_state():
    outcome = await grade(1.0, {"facts": {"calls": 1, "question": "q"}, "answer": "9"})
    assert (outcome.score, outcome.success) == (1.0, True)
    assert outcome.facts == {"answer": "9", "calls": 1, "state": {"calls": 1, "question": "q"}}
    assert (await grade(0.0, {"facts": {"calls": 0}, "answer": None})).facts["answer"] is None
    assert (await grade(0, {"facts": {}, "answer": 9})).facts == {"answer": "9", "calls": 2, "state": {}}


@pytest.mark.parametrize(("score", "state"), [(None, {}), (2.0, {"facts": {}}), (1.0, None), (1.0, {"facts": None})])
async def test_what_an_environment_does_not_tell_is_no_play(score, state):
    with pytest.raises(EnvServiceError):
        await grade(score, state)


@pytest.mark.thorough
def test_a_proposer_plays_with_its_own_keys_and_an_executor_with_its_own():
    override = "{env_service.env_params: {verbose: true}, actor_rollout_ref.rollout.temperature: 0.7}"
    loaded = load(
        None,
        [
            *("device=cpu", "env_service.env_type=calc", f"coevolve.proposer.override={override}"),
            *("env_service.env_params={max_steps: 9}", "actor_rollout_ref.rollout.val_kwargs.temperature=0.3"),
        ],
    )
    tree = resolved_tree(loaded.config)
    config, proposing = settings_for(tree, loaded.settings, PROPOSE_ENV)
    assert proposing.env_service.env_types == (PROPOSE_ENV,) and proposing.rollout.max_steps == 1
    assert proposing.environment(PROPOSE_ENV).params(validation=False) == {"verbose": True}
    assert sampling_of(config)[0]["temperature"] == 0.7
    config, executing = settings_for(tree, loaded.settings, "calc")
    assert executing.environment("calc").params(validation=False) == {"max_steps": 9}
    training, validation = sampling_of(config)
    assert (training["temperature"], validation["temperature"]) == (1.0, 0.3)

"""Playing a task with a frozen policy: the rollouts of training, with nobody trained.

One engine holds one policy at a time (`turns.py`). An episode is what training would have made of it: the same
templates, limits, flows and samples. What is read of it is the environment's: its grade, and its state for the answer
and the number of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from agentevolver.coevolve.overlays import PROPOSING
from agentevolver.coevolve.player.client import PlayerRefused, PlayerUnavailable, PlayFailed
from agentevolver.coevolve.player.turns import Turns
from agentevolver.coevolve.player.weights import Accepted, Weights, identify
from agentevolver.coevolve.types import Play
from agentevolver.config.checks import from_config
from agentevolver.config.load import resolved_tree
from agentevolver.config.overlay import flat, laid_over
from agentevolver.config.schema import PROPOSE_ENV, Settings
from agentevolver.engine import Engine, EngineError
from agentevolver.rollout.attempt import is_score
from agentevolver.rollout.rollout import Rollout, RolloutRunner
from agentevolver.types import Outcome, Task
from agentevolver.utils import seeds
from env_service.client import EnvServiceError
from env_service.protocol import Instances
from task_manager.graders.base import Transcript


class StateGrader:
    """Grader that asks the environment for its grade and its state, whoever a task names to grade it."""

    def __init__(self, *, sparse: bool = True) -> None:
        self._sparse = sparse

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Return the environment's grade; its facts are `answer`, `calls` and `state`. An environment that does not
        count the calls that it carried out is taken to have carried out every action.

        Raises EnvServiceError, also where the environment tells no state.
        """
        score = await client.evaluate(instance_id, list(trajectory.messages), {"sparse": self._sparse})
        if not is_score(score):
            raise EnvServiceError(
                f"graded {score!r}, expected a number in 0..1", url="/evaluate", instance_id=instance_id
            )
        state = await client.get_tools_info(instance_id, params={"what": "state"})
        facts = state.get("facts") if isinstance(state, Mapping) else None
        if not isinstance(facts, Mapping):
            raise EnvServiceError(
                f"the environment {task.env_type!r} does not tell its state, so nobody knows the answer",
                url="/get_info",
                instance_id=instance_id,
            )
        calls = facts.get("calls", len(trajectory.steps))
        answer = state.get("answer")
        found = {"answer": None if answer is None else str(answer), "calls": int(calls), "state": dict(facts)}
        return Outcome(float(score), score >= 1.0, facts=found)


class FrozenPlayer:
    """Player of tasks with one engine; for one event loop.

    Args:
        engine: samples.
        runners: of each environment's episodes, by its name.
        settings: of the run, by the environment's name.
        sampling: parameters of training's samples, and of validation's, by the environment's name.
        loaded: the folder whose weights the engine has.
        at_once: episodes in flight.
    """

    def __init__(
        self,
        engine: Weights,
        runners: Mapping[str, RolloutRunner],
        settings: Mapping[str, Settings],
        sampling: Mapping[str, tuple[dict[str, Any], dict[str, Any]]],
        loaded: Path | None,
        at_once: int,
    ) -> None:
        self._engine = engine
        self._runners = runners
        self._settings = settings
        self._sampling = sampling
        self._accepted = Accepted(engine)
        self._slots = asyncio.Semaphore(at_once)
        self.turns = Turns(engine.load, None if loaded is None else identify(loaded))

    async def play(
        self, checkpoint: Path | str, task: Task, n: int, name: str, validation: bool = False
    ) -> Sequence[Play]:
        """Return n episodes of `task`, in order; see `client.PlayerClient.play`."""
        if task.env_type not in self._runners:
            raise PlayerRefused(
                f"task {task.task_id}: {task.env_type!r} is not one of the run's environments: "
                f"{', '.join(self._runners)}"
            )
        if self._engine.dead:
            raise PlayerUnavailable("the engine has ended, and the player with it")
        key = await asyncio.to_thread(self._accepted.name, checkpoint)
        try:
            async with self.turns.of(key):
                return await self._play_all(task, n, name, validation)
        except EngineError as error:
            raise self._failed(f"checkpoint {checkpoint}: {error}") from error

    async def _play_all(self, task: Task, n: int, name: str, validation: bool) -> list[Play]:
        # The environment itself grades validation, and an episode that never began has no grade: here all are asked for
        # their state, and all that happened are plays.
        plain = replace(task, metadata={key: value for key, value in task.metadata.items() if key != "validation"})
        try:
            async with asyncio.TaskGroup() as group:
                playing = [group.create_task(self._episode(plain, number, name, validation)) for number in range(n)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [episode.result() for episode in playing]

    async def _episode(self, task: Task, number: int, name: str, validation: bool) -> Play:
        settings = self._settings[task.env_type]
        env_params = settings.environment(task.env_type).params(validation=validation)
        sampling = self._sampling[task.env_type][validation]
        async with self._slots:
            with seeds.drawing(settings.data.seed, "play", name, number):
                rollout = await self._runners[task.env_type].run(task, name, number, dict(sampling), env_params)
        return self._read(rollout, number)

    def _read(self, rollout: Rollout, number: int) -> Play:
        """Return what an episode came to; raises PlayerUnavailable for one that did not happen."""
        trajectory = rollout.trajectory
        outcome, steps = trajectory.outcome, len(trajectory.steps)
        if not trajectory.stop_reason.happened:
            raise self._failed(
                f"episode {number} of task {trajectory.task.task_id}: {trajectory.stop_reason.value} after "
                f"{trajectory.attempts} attempts: {trajectory.error}"
            )
        if outcome is None or outcome.facts is None:
            # Its opening fills the context: it ended before the first action, as it would in training.
            return Play(None, 0, 0.0, False, {"never_acted": trajectory.error or trajectory.stop_reason.value}, steps)
        facts = outcome.facts
        return Play(facts["answer"], facts["calls"], outcome.score, outcome.success, facts["state"], steps)

    def _failed(self, why: str) -> PlayerUnavailable:
        return PlayerUnavailable(why) if self._engine.dead else PlayFailed(why)


def settings_for(config: Mapping[str, Any], settings: Settings, env_type: str) -> tuple[DictConfig, Settings]:
    """Return the configuration that episodes of an environment have in training:
    the proposer's for `propose`, else the executor's."""
    section = settings.coevolve
    overlay = (
        {**PROPOSING, **flat(section.proposer.override, config)}
        if env_type == PROPOSE_ENV
        else flat(section.executor.override, config)
    )
    made = laid_over(config, overlay)
    return made, from_config(made)


def sampling_of(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sampling parameters of training and of validation, as verl's agent loops make them."""
    rollout = config.actor_rollout_ref.rollout
    own = {name: rollout[name] for name in ("temperature", "top_p", "top_k")} | {"repetition_penalty": 1.0}
    validation = {name: rollout.val_kwargs[name] for name in ("temperature", "top_p", "top_k")}
    return own, {**own, **validation}


def make_player(
    config: DictConfig, settings: Settings, engine: Any, tokenizer: Any, loaded: Path, client: Instances
) -> FrozenPlayer:
    """Return the player of a run.

    Args:
        config: of the run.
        settings: its typed view.
        engine: samples, and changes its weights.
        tokenizer: of the policy.
        loaded: the folder whose weights the engine has.
        client: of the environment service.

    Raises ConfigError for a template or flow that cannot be used.
    """
    from agentevolver.rollout.agent_loop import make_runner

    tree = resolved_tree(config)
    sampler: Engine = engine
    runners, views, sampling = {}, {}, {}
    for env_type in dict.fromkeys((*settings.env_service.env_types, PROPOSE_ENV)):
        own, view = settings_for(tree, settings, env_type)
        kwargs = own.data.get("apply_chat_template_kwargs")
        runners[env_type] = make_runner(
            view, sampler, tokenizer, kwargs, graders=StateGrader(sparse=view.rollout.sparse), client=client
        )
        views[env_type], sampling[env_type] = view, sampling_of(own)
    return FrozenPlayer(engine, runners, views, sampling, loaded, settings.rollout.max_env_worker)

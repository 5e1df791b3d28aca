"""Plays tasks with a frozen policy: rollouts as in training, without an update.

Templates, limits, flows and sampling are those of training. The environment's grade gives success, its state the answer
and the number of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.checks import from_config
from agentevolver.config.overlay import flat, laid_over
from agentevolver.config.schema import Settings
from agentevolver.recipes.agent0.overlays import PROPOSING
from agentevolver.recipes.agent0.settings import PROPOSE_ENV, settings_of
from agentevolver.recipes.agent0.types import Play
from agentevolver.rollout.rollout import Rollout, RolloutRunner
from agentevolver.trainer.job.frozen_engine import FrozenEngine, sampling_of
from agentevolver.types import Outcome, Task
from agentevolver.utils import numbers, seeds
from env_service.client import EnvServiceError
from env_service.protocol import Instances
from task_manager.graders.base import Transcript


class PlayFailed(Exception):
    """An episode could not be played after all tries, because the environment service or the engine failed."""


class Player(Protocol):
    async def play(self, checkpoint: str, task: Task, n: int, name: str, validation: bool = False) -> Sequence[Play]:
        """Return n episodes of a task, in order; raises PlayFailed.

        `checkpoint` is a Hugging Face folder or a name on the hub. Equal names with equal weights give equal samples.
        `validation` uses the sampling and the instances of validation.
        """
        ...


class StateGrader:
    """Grader that asks the environment for its grade and state, whichever grader the task names."""

    def __init__(self, *, sparse: bool = True) -> None:
        self._sparse = sparse

    async def grade(self, task: Task, trajectory: Transcript, client: Instances, instance_id: str) -> Outcome:
        """Return the environment's grade, with the facts `answer`, `calls` and `state`. If the environment does not
        count calls, every action is one. Raises EnvServiceError."""
        graded = await client.evaluate(instance_id, list(trajectory.messages), {"sparse": self._sparse})
        if (score := numbers.score(graded)) is None:
            raise EnvServiceError(
                f"graded {graded!r}, expected a number in 0..1", url="/evaluate", instance_id=instance_id
            )
        state = await client.get_tools_info(instance_id, params={"what": "state"})
        facts = state.get("facts") if isinstance(state, Mapping) else None
        if not isinstance(facts, Mapping):
            raise EnvServiceError(
                f"the environment {task.env_type!r} does not expose its state, so the answer is unknown",
                url="/get_info",
                instance_id=instance_id,
            )
        answer, calls = state.get("answer"), int(facts.get("calls", len(trajectory.steps)))
        found = {"answer": None if answer is None else str(answer), "calls": calls, "state": dict(facts)}
        return Outcome(score, score >= 1.0, facts=found)


class FrozenPlayer:
    """Player on the server of frozen policies at `recipes.agent0.url`, for one event loop."""

    def __init__(self, config: Mapping[str, Any], settings: Settings, client: Instances) -> None:
        from transformers import AutoTokenizer

        model = config["actor_rollout_ref"]["model"]
        self._tokenizer = AutoTokenizer.from_pretrained(
            model["tokenizer_path"] or model["path"], trust_remote_code=model["trust_remote_code"]
        )
        self._config = config
        self._settings = settings
        self._client = client
        self._views: dict[str, tuple[DictConfig, Settings]] = {}
        self._runners: dict[tuple[str, str], RolloutRunner] = {}
        self._engines: list[FrozenEngine] = []
        self._slots = asyncio.Semaphore(settings.rollout.max_env_worker)

    async def play(self, checkpoint: str, task: Task, n: int, name: str, validation: bool = False) -> list[Play]:
        config, settings = self._view(task.env_type)
        runner = self._runner(checkpoint, task.env_type)
        env_params = settings.environment(task.env_type).params(validation=validation)
        sampling = sampling_of(config, validation=validation)
        # Without the mark of validation: only the environment would grade such episodes.
        plain = replace(task, metadata={key: value for key, value in task.metadata.items() if key != "validation"})

        async def episode(number: int) -> Play:
            async with self._slots:
                with seeds.drawing(settings.data.seed, "play", name, number):
                    return read(await runner.run(plain, name, number, dict(sampling), env_params), checkpoint)

        try:
            async with asyncio.TaskGroup() as group:
                playing = [group.create_task(episode(number)) for number in range(n)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [one.result() for one in playing]

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()

    def _view(self, env_type: str) -> tuple[DictConfig, Settings]:
        if env_type not in self._views:
            override = settings_of(self._settings).proposer.override
            proposing = {**PROPOSING, **flat(override, self._config)}
            made = laid_over(self._config, proposing if env_type == PROPOSE_ENV else {})
            self._views[env_type] = made, from_config(made)
        return self._views[env_type]

    def _runner(self, checkpoint: str, env_type: str) -> RolloutRunner:
        if (checkpoint, env_type) not in self._runners:
            from agentevolver.trainer.verl_plugin.agent_loop import make_runner  # imports verl, which takes seconds

            config, settings = self._view(env_type)
            engine = FrozenEngine(
                settings_of(self._settings).url,
                checkpoint,
                max_model_len=settings.sizes.max_model_len,
                timeout_s=settings.rollout.step_timeout_s,
                # As in training: on a GPU, seeds cost time and change nothing unless kernels are deterministic.
                seeded=settings.trainer.deterministic or bool(config.actor_rollout_ref.rollout.get("full_determinism")),
            )
            self._engines.append(engine)
            self._runners[checkpoint, env_type] = make_runner(
                settings,
                engine,
                self._tokenizer,
                config.data.get("apply_chat_template_kwargs"),
                graders=StateGrader(sparse=settings.rollout.sparse),
                client=self._client,
            )
        return self._runners[checkpoint, env_type]


def read(rollout: Rollout, checkpoint: str) -> Play:
    trajectory = rollout.trajectory
    outcome, steps = trajectory.outcome, len(trajectory.steps)
    if not trajectory.stop_reason.happened:
        raise PlayFailed(
            f"episode {trajectory.rollout_id} of task {trajectory.task.task_id} by {checkpoint}: "
            f"{trajectory.stop_reason.value} after {trajectory.attempts} attempts: {trajectory.error}"
        )
    if outcome is None or outcome.facts is None:
        # The opening fills the context, so the episode ended before the first action, as in training.
        return Play(None, 0, 0.0, False, {"never_acted": trajectory.error or trajectory.stop_reason.value}, steps)
    facts = outcome.facts
    return Play(facts["answer"], facts["calls"], outcome.score, outcome.success, facts["state"], steps)


def player_of(experiment: Path, client: Instances) -> FrozenPlayer:
    config = OmegaConf.load(experiment / "config.yaml")
    tree: Any = OmegaConf.to_container(config, resolve=False)
    return FrozenPlayer(tree, from_config(OmegaConf.create(tree)), client)

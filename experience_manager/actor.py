"""Ray actor that hosts a run's `ExperienceManager`. One process owns the store, the encoder and the summariser.

Rollouts call it through `Guide`, which never fails: if the actor is gone or slow, the rollout is unguided and its
`problem` says why.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from agentevolver.llm.settings import LLMSettings, Role
from agentevolver.types import Trajectory
from agentevolver.utils import recipes
from agentevolver.utils.inflight import BOARD, Waiting
from agentevolver.utils.names import load_named
from experience_manager.backend import Backend, EmbeddedBackend
from experience_manager.guide import Guidance
from experience_manager.manager import ExperienceManager, Filling
from experience_manager.per_environment import BackendPerEnvironment
from experience_manager.question import Question
from experience_manager.settings import ExperienceSettings

logger = logging.getLogger(__name__)
# Restarts by Ray after the process is lost; the pool is on disk.
MAX_RESTARTS = 3
# Added to the actor's own timeout, whose answer names the reason.
SLACK_S = 15.0
MAX_CONCURRENCY = 1024


class ExperienceActor(ExperienceManager):
    """Ray class behind `start_actor`: a manager that opens its own backend."""

    def __init__(
        self,
        settings: dict[str, Any],
        llm: dict[str, Any],
        directory: str,
        held_out: Sequence[str] = (),
        seed: int = 0,
        apart: Mapping[str, Sequence[str]] | None = None,
        steps_kept: int = 1,
    ) -> None:
        from agentevolver.llm import LLM

        checked, llm_settings = ExperienceSettings.model_validate(settings), LLMSettings.model_validate(llm)
        self._llm: LLM | None = None
        backend: Backend
        if checked.backend != "embedded":
            make: Callable[[ExperienceSettings], Backend] = load_named(checked.backend, recipes.stages("backend"))
            backend = make(checked)
            if apart:
                backend = BackendPerEnvironment({name: make(checked.of_environment(name)) for name in apart})
        else:
            self._llm = LLM(llm_settings) if checked.asks_summariser else None
            author = llm_settings.endpoint(Role.SUMMARISER).model
            # Raises StoreError for an unusable file, so that a run fails before its first step.
            embedded = EmbeddedBackend.open(checked, Path(directory), self._llm, author=author, held_out=held_out)
            # While vLLM starts, loading the encoder takes minutes on two cores, longer than a rollout's timeout.
            threading.Thread(target=embedded.pool.warm_up, name="encoder", daemon=True).start()
            backend = embedded
            if apart:
                backend = BackendPerEnvironment(
                    {name: embedded.of_environment(name, ids) for name, ids in apart.items()}
                )
        super().__init__(checked, backend, seed=seed, steps_kept=steps_kept)

    async def record_step(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        return {**await super().record_step(step, trajectories), **self._llm_metrics()}

    async def warm_start(self, trajectories: Sequence[Trajectory]) -> Filling:
        filling = await super().warm_start(trajectories)
        return replace(filling, metrics={**filling.metrics, **self._llm_metrics()})

    async def waiting(self) -> Waiting:
        return BOARD.waiting()

    async def aclose(self, timeout_s: float = 60.0) -> None:
        await super().aclose(timeout_s)
        if self._llm is not None:
            await self._llm.aclose()

    def _llm_metrics(self) -> dict[str, float]:
        return self._llm.metrics() if self._llm is not None else {}


def start_actor(
    settings: ExperienceSettings,
    llm: LLMSettings,
    directory: Path,
    *,
    held_out: Iterable[str] = (),
    seed: int = 0,
    apart: Mapping[str, Sequence[str]] | None = None,
    steps_kept: int = 1,
    **options: Any,
) -> ray.actor.ActorHandle:
    """Start the actor and return its handle; `handle.__ray_ready__` fails if the pool cannot be opened.

    Args:
        directory: the experiment's folder, an absolute path on the actor's node.
        held_out: ids of evaluation tasks, which are never distilled.
        apart: with several environments, `held_out` by environment; each gets a workspace of its own.
        steps_kept: number of training steps in which a group may be rolled out.
        options: Ray's actor options, such as `name` and `resources`.
    """
    # One compute thread for the encoder; busy-waiting threads would slow the trainer's.
    env = {"OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    chosen = {"num_cpus": 0, "max_concurrency": MAX_CONCURRENCY, "runtime_env": {"env_vars": env}, **options}
    chosen = {"name": _name(directory), "max_restarts": MAX_RESTARTS, **chosen}
    actor = ray.remote(ExperienceActor).options(**chosen)
    return actor.remote(
        settings.model_dump(mode="json"),
        llm.model_dump(mode="json"),
        str(directory),
        list(held_out),
        seed,
        apart,
        steps_kept,
    )


def find_actor(directory: Path) -> ray.actor.ActorHandle:
    """Return the actor of an experiment's folder; raises ValueError if this Ray job has none."""
    return ray.get_actor(_name(directory))


def _name(directory: Path) -> str:
    return f"experience-manager:{directory.resolve()}"


class Guide:
    """Client of the actor for rollouts. Picklable, and never raises."""

    def __init__(self, actor: Any, settings: ExperienceSettings) -> None:
        self._actor = actor
        self._timeout_s = settings.retrieval.timeout_s + SLACK_S

    async def guide(self, question: Question) -> Guidance:
        """Return guidance; without an answer from the actor, an empty one whose `problem` says why."""
        try:
            return await asyncio.wait_for(_awaited(self._actor.guide.remote(question)), self._timeout_s)
        except TimeoutError:
            problem = f"the experience manager did not answer within {self._timeout_s:g} s"
        except RayError as error:
            problem = f"the experience manager failed: {type(error).__name__}"
        logger.warning("a rollout of task %s goes on without guidance: %s", question.task_id, problem)
        return Guidance(problem=problem)

    def injected(self, guidance: Guidance, *, validation: bool) -> None:
        self._actor.injected.remote(guidance.experience_ids, validation=validation)


async def _awaited(reference: Any) -> Guidance:
    guidance: Guidance = await reference
    return guidance

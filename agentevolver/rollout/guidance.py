"""Guidance in a worker's rollouts: which rollouts get it, its source, and its record in the trajectory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from agentevolver.rollout.rollout import Guide, Rollout
from agentevolver.types import GuidanceUse, Task
from experience_manager.guide import Guidance, Injection, inject, is_guided
from experience_manager.question import Question
from experience_manager.settings import ExperienceSettings

if TYPE_CHECKING:
    from experience_manager import actor

logger = logging.getLogger(__name__)


class Guides:
    def __init__(self, settings: ExperienceSettings, source: actor.Guide, n: int, val_n: int) -> None:
        self._settings = settings
        self._source = source
        self._n = n
        self._val_n = val_n

    def guide(self, task: Task, group_id: str, rollout_id: int, step: int, place: int = 0) -> Guide | None:
        """Return a rollout's guide, or None if it gets no guidance. `place` is the index of its task in the step."""
        validation = task.is_validation
        n = self._val_n if validation else self._n
        if task.is_scout or not is_guided(self._settings, group_id, rollout_id, n, validation=validation):
            return None

        async def guide(opening: list[dict[str, Any]]) -> Injection:
            guidance = await self._source.guide(
                Question(task.task_id, tuple(opening), task.query, validation, step, place, task.env_type)
            )
            try:
                return inject(opening, guidance, self._settings.experience_template)
            except ValueError as error:
                logger.warning("a rollout of task %s goes on without guidance: %s", task.task_id, error)
                return Injection(opening, opening, Guidance(problem=str(error)))

        return guide

    def used(self, rollout: Rollout, *, wanted: bool) -> GuidanceUse:
        """Count an injection and return its record. `wanted` says whether the rollout was meant to be guided."""
        injection = rollout.injection
        if injection is None:
            return GuidanceUse(wanted)
        if injection.guided:
            self._source.injected(injection.guidance, validation=rollout.trajectory.task.is_validation)
        return injection.use(wanted=wanted)

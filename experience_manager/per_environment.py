"""Backend for several environments: a workspace each, in one store or service."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from agentevolver.types import Trajectory
from experience_manager.attempts import Group, PastAttempt
from experience_manager.backend import Backend, Settled
from experience_manager.distill import Distilled
from experience_manager.errors import ExperienceError
from experience_manager.question import Question, Retrieved


class BackendPerEnvironment(Backend):
    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = dict(backends)

    async def retrieve(self, question: Question) -> Retrieved:
        return await self._of(question.env_type).retrieve(question)

    async def distil(self, group: Group, step: int | None) -> Distilled:
        env_type = group[0].env_type
        distilled = await self._of(env_type).distil(group, step)
        distilled.env_type = env_type
        return distilled

    async def keep(self, distilled: Distilled) -> None:
        await self._of(distilled.env_type).keep(distilled)

    async def used(self, ids: Collection[str]) -> None:
        # Each id exists in one workspace; the others skip it.
        for backend in self._backends.values():
            await backend.used(ids)

    async def settle(self, results: Iterable[Settled]) -> None:
        counted = list(results)
        for backend in self._backends.values():
            await backend.settle(counted)

    async def record(
        self, step: int, trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for env_type, backend in self._backends.items():
            own = [one for one in trajectories if one.task.env_type == env_type]
            found = await backend.record(step, own, [one for one in attempts if one.env_type == env_type])
            # Rankings of several environments report the same names.
            metrics |= {f"{name}/{env_type}": value for name, value in found.items()}
        return metrics

    async def start_over(self) -> None:
        for backend in self._backends.values():
            await backend.start_over()

    async def prune(self) -> int:
        return sum([await backend.prune() for backend in self._backends.values()])

    async def size(self) -> int | None:
        sizes = [await backend.size() for backend in self._backends.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    async def copy_to(self, path: Path) -> bool:
        return await self._any.copy_to(path)

    async def restore(self, path: Path, aside: Path) -> None:
        await self._any.restore(path, aside)

    async def aclose(self) -> None:
        for backend in self._backends.values():
            await backend.aclose()

    @property
    def _any(self) -> Backend:
        # A copy or restore covers the whole store, so each backend would do.
        return next(iter(self._backends.values()))

    def _of(self, env_type: str) -> Backend:
        if (backend := self._backends.get(env_type)) is None:
            raise ExperienceError(
                f"there is no experience of the environment {env_type!r}, only of {', '.join(self._backends)}"
            )
        return backend

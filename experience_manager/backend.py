"""Storage backends of the experience manager: the interface, and the embedded store.

Every method may raise ExperienceError or EncoderUnavailable. The caller turns either into an unguided rollout or a
counter. Store and encoder work in threads, so the event loop stays free.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agentevolver.llm.embeddings import Encoder, make_encoder
from agentevolver.types import Trajectory
from experience_manager.attempts import Group, PastAttempt
from experience_manager.distill import Distilled, Distiller
from experience_manager.pool import Pool, prune
from experience_manager.question import Question, Retrieved
from experience_manager.ranking import RankingContext, make_ranking
from experience_manager.retrieve import Retriever
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Count, Store

if TYPE_CHECKING:
    from agentevolver.llm import LLM


@dataclass(frozen=True, slots=True)
class Settled:
    """Outcome of a guided training rollout."""

    experience_ids: tuple[str, ...]
    success: bool | None  # None if the rollout failed
    lift: float | None = None  # success minus the mean success of unguided siblings; None without any


class Backend(ABC):
    """Storage of experience: retrieval, distillation, counters, pruning, and copies for checkpoints.

    A recipe registers a class as a stage of kind `backend`; it is constructed with the section `exp_manager`.
    """

    @abstractmethod
    async def retrieve(self, question: Question) -> Retrieved: ...

    @abstractmethod
    async def distil(self, group: Group, step: int | None) -> Distilled: ...

    async def keep(self, distilled: Distilled) -> None:
        """Store a group's experiences, and add the numbers stored to `distilled.counts`."""

    async def used(self, ids: Collection[str]) -> None:
        """Count one injection per id; ids may repeat."""

    @abstractmethod
    async def settle(self, results: Iterable[Settled]) -> None:
        """Add the outcomes to the counters of their experiences."""

    async def record(
        self, step: int, trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]
    ) -> dict[str, float]:
        """Pass a step's rollouts to the ranking; return its metrics."""
        return {}

    async def start_over(self) -> None:
        """Tell the ranking that the run restarts at step 1. Experiences stay."""

    @abstractmethod
    async def prune(self) -> int:
        """Delete experiences of too little use; return how many."""

    async def size(self) -> int | None:
        """Return the number of experiences, or None if unknown."""
        return None

    async def copy_to(self, path: Path) -> bool:
        """Write a copy of the store; return False if this backend holds nothing to copy."""
        return False

    async def restore(self, path: Path, aside: Path) -> None:
        """Replace the content by a copy's; save the replaced content to `aside`."""

    async def aclose(self) -> None: ...


class EmbeddedBackend(Backend):
    """Backend on a SQLite store in this process, with its own encoder and summariser."""

    def __init__(
        self,
        settings: ExperienceSettings,
        pool: Pool,
        llm: LLM | None = None,
        *,
        author: str = "",
        held_out: Collection[str] = (),
        source: str = "",
    ) -> None:
        """`source`: the run whose steps the ranking records. Raises ExperienceError if the ranking is invalid."""
        self._source = source
        self._settings = settings
        self._llm = llm
        self._author = author
        self.pool = pool
        self._ranking = make_ranking(settings.ranking, RankingContext(pool.store, pool.workspace, source))
        self._retriever = Retriever(pool, settings, llm, self._ranking)
        self._distiller = (
            Distiller(llm, settings.distillation, author=author, held_out=held_out) if llm is not None else None
        )

    @classmethod
    def open(
        cls,
        settings: ExperienceSettings,
        directory: Path,
        llm: LLM | None = None,
        *,
        encoder: Encoder | None = None,
        author: str = "",
        held_out: Collection[str] = (),
    ) -> Self:
        """Open the configured store, or `experience.sqlite` in `directory`. Loads no model. Raises StoreError."""
        store = Store(settings.store or directory / "experience.sqlite")
        pool = Pool.of(settings, store, encoder or make_encoder(settings.encoder))
        try:
            pool.require_encoder()
            return cls(settings, pool, llm, author=author, held_out=held_out, source=str(directory.resolve()))
        except Exception:
            store.close()
            raise

    def of_environment(self, env_type: str, held_out: Collection[str] = ()) -> EmbeddedBackend:
        """Return a backend that differs only in its workspace, for one of several environments."""
        section = self._settings.of_environment(env_type)
        pool = self.pool.beside(section.reme.workspace_id)
        return EmbeddedBackend(section, pool, self._llm, author=self._author, held_out=held_out, source=self._source)

    async def retrieve(self, question: Question) -> Retrieved:
        return await self._retriever.retrieve(question)

    async def distil(self, group: Group, step: int | None) -> Distilled:
        if self._distiller is None:
            return Distilled(counts=Counter(without_llm=1))
        return await self._distiller.distil(group, step)

    async def keep(self, distilled: Distilled) -> None:
        if distilled.experiences:
            added = await asyncio.to_thread(self.pool.add, distilled.experiences)
            distilled.counts.update(stored=added.inserted, joined=added.joined, outvoted=added.outvoted)

    async def used(self, ids: Collection[str]) -> None:
        await self._count({identifier: Count(uses=times) for identifier, times in Counter(ids).items()})

    async def settle(self, results: Iterable[Settled]) -> None:
        counts: dict[str, Count] = {}
        for result in results:
            for identifier in result.experience_ids:
                so_far = counts.get(identifier, Count())
                compared = result.lift is not None and result.success is not None
                counts[identifier] = Count(
                    uses=so_far.uses - (result.success is None),
                    successes=so_far.successes + bool(result.success),
                    compared=so_far.compared + compared,
                    lift=so_far.lift + (result.lift or 0.0 if compared else 0.0),
                )
        await self._count(counts)

    async def record(
        self, step: int, trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]
    ) -> dict[str, float]:
        if self._ranking is None:
            return {}
        return await asyncio.to_thread(self._ranking.record, step, trajectories, attempts)

    async def start_over(self) -> None:
        if self._ranking is not None:
            await asyncio.to_thread(self._ranking.start_over)

    async def prune(self) -> int:
        least = self._settings.pruning.min_uses
        return await asyncio.to_thread(prune, self.pool.store, self.pool.workspace, self._ranking, min_uses=least)

    async def size(self) -> int | None:
        return await asyncio.to_thread(len, self.pool)

    async def copy_to(self, path: Path) -> bool:
        await asyncio.to_thread(self.pool.store.copy_to, path)
        return True

    async def restore(self, path: Path, aside: Path) -> None:
        await asyncio.to_thread(self.pool.store.restore, path, aside)

    async def aclose(self) -> None:
        self.pool.store.close()

    async def _count(self, counts: dict[str, Count]) -> None:
        if counts:
            await asyncio.to_thread(self.pool.count, counts)

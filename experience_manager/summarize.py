"""Distillation: what a group of finished rollouts teaches, as experiences that a judge has let through.

    group -> successes | failures | best against worst  (extraction)  -> screen -> judge -> experiences

Rollouts of validation, and of tasks that are held out, are refused here whoever sends them. Every call to the model may fail: what it would
have given is then missing and counted, the rest goes on; nothing that was not judged is kept. What each stage took and left is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from agentevolver.llm import BudgetExceeded, LLMError, Role
from agentevolver.utils import seeds
from experience_manager import prompts, screen
from experience_manager.places import BETWEEN, mentions, places_in
from experience_manager.record import Category, Experience
from experience_manager.settings import DistillationSettings
from experience_manager.trajectories import Attempt, Group

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)


class Summariser(Protocol):
    """What is used of `agentevolver.llm.LLM`."""

    async def structured(self, role: Role, messages: list[dict[str, Any]], schema: type[M], **sampling: Any) -> M: ...


@dataclass(slots=True)
class Distilled:
    """Experiences of a group, and how many each stage took and left; `exhausted` says that the budget for models is spent."""

    experiences: list[Experience] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    """An extraction: what is asked, what it is asked about, and the attempt in whose light its results are judged."""

    category: Category
    messages: list[dict[str, Any]]
    attempts: tuple[Attempt, ...]


class Distiller:
    """Distils groups. Safe for many at once on one event loop."""

    def __init__(self, llm: Summariser, settings: DistillationSettings, *, author: str = "", held_out: Collection[str] = ()) -> None:
        """Take the model that summarises, `author` as its name in records, and the ids of tasks that must not be learned from."""
        self._llm = llm
        self._settings = settings
        self._author = author
        self._held_out = frozenset(held_out)

    async def distil(self, group: Group, step: int | None = None) -> Distilled:
        """Return what a group teaches; raises nothing but cancellation."""
        result = Distilled()
        attempts = [a for a in group if not a.validation and a.task_id not in self._held_out and a.steps]
        result.counts["groups"] += 1
        result.counts["rollouts"] += len(attempts)
        result.counts["refused"] += len(group) - len(attempts)
        sources = self._sources(attempts)
        drafts = await asyncio.gather(*(self._extract(source, step, result) for source in sources))
        judged = await asyncio.gather(
            *(self._judge(draft, source, result) for source, of in zip(sources, drafts, strict=True) for draft in of)
        )
        result.experiences = [experience for experience in judged if experience is not None]
        return result

    def _sources(self, attempts: Sequence[Attempt]) -> list[_Source]:
        limit, chars = self._settings.max_experiences, self._settings.max_chars
        most = self._settings.max_per_kind or len(attempts)
        ranked = sorted(attempts, key=lambda a: (-a.score, len(a.steps), a.trajectory_id))
        successes = [a for a in ranked if a.success][:most]
        failures = [a for a in reversed(ranked) if not a.success][:most]
        sources = [
            _Source(category, prompts.extract(attempt, limit=limit, max_chars=chars), (attempt,))
            for category, chosen in ((Category.SUCCESS, successes), (Category.FAILURE, failures))
            for attempt in chosen
        ]
        if self._settings.comparative and ranked and ranked[0].score > ranked[-1].score:
            pair = (ranked[0], ranked[-1])
            sources.append(_Source(Category.COMPARATIVE, prompts.compare(*pair, limit=limit, max_chars=chars), pair))
        return sources

    async def _extract(self, source: _Source, step: int | None, result: Distilled) -> list[Experience]:
        """Return what a source gives, screened."""
        reply = await self._ask(source.messages, prompts.Proposals, "extraction", result)
        kept = []
        for number, proposal in enumerate(reply.experiences[: self._settings.max_experiences] if reply is not None else ()):
            result.counts[f"extracted_{source.category.value}"] += 1
            experience = self._experience(proposal, number, source, step)
            problem = screen.problem_with(experience.when_to_use, experience.content) or screen.problem_with_text(experience.scope)
            if problem is None:
                kept.append(experience)
            else:
                result.counts["screened"] += 1
                logger.info("an experience of task %s was screened out: %s", source.attempts[0].task_id, problem)
        return kept

    def _experience(self, proposal: prompts.Proposal, number: int, source: _Source, step: int | None) -> Experience:
        first = source.attempts[0]
        said, told = screen.tidy(proposal.scope), f"{first.opening}\n{first.task}"
        experience = Experience(
            when_to_use=screen.tidy(proposal.when_to_use),
            content=screen.tidy(proposal.content),
            # A place that neither opening nor task names could never be recognised again.
            scope=f" {BETWEEN} ".join(place for place in places_in(said) if mentions(told, place)),
            category=source.category,
            validation_score=0.0,
            confidence=proposal.confidence,
            author=self._author,
            step=step,
            task_query=first.task,
            task_ids=tuple(dict.fromkeys(attempt.task_id for attempt in source.attempts)),
            trajectory_ids=tuple(attempt.trajectory_id for attempt in source.attempts if attempt.trajectory_id),
            tags=tuple(screen.tidy(tag)[:60] for tag in proposal.tags[:8]),
        )
        return experience if (draws := seeds.current()) is None else replace(experience, id=_named(draws, experience, number))

    async def _judge(self, experience: Experience, source: _Source, result: Distilled) -> Experience | None:
        """Return the experience with its score if it is worth keeping."""
        if not self._settings.validate_by_llm:
            result.counts["valid"] += 1
            return replace(experience, validation_score=experience.confidence)
        messages = prompts.validate(experience, source.attempts[0], max_chars=self._settings.max_chars)
        judgement = await self._ask(messages, prompts.Judgement, "validation", result)
        if judgement is None:
            return None
        if not judgement.valid or judgement.score < self._settings.min_score:
            result.counts["invalid"] += 1
            return None
        result.counts["valid"] += 1
        return replace(experience, validation_score=judgement.score)

    async def _ask(self, messages: list[dict[str, Any]], schema: type[M], stage: str, result: Distilled) -> M | None:
        """Return the model's reply, None (and a count) if there is none that can be used."""
        if result.exhausted:
            result.counts[f"failed_{stage}"] += 1
            return None
        try:
            return await self._llm.structured(Role.SUMMARISER, messages, schema)
        except BudgetExceeded as error:
            result.exhausted = True
            logger.warning("distillation ends here: %s", error)
        except LLMError as error:
            logger.warning("%s failed: %s", stage, error)
        result.counts[f"failed_{stage}"] += 1
        return None


def _named(draws: seeds.Draws, experience: Experience, number: int) -> str:
    """Return an id that follows from what an experience says, and of which rollouts of which run it is the how manieth."""
    said = (experience.category.value, experience.scope, experience.when_to_use, experience.content)
    return seeds.digest(draws.run_seed, "experience", *experience.trajectory_ids, number, *said).hex()

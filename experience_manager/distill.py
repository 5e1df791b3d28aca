"""Distillation: turns a group of finished rollouts into experiences that a judge accepts.

    group -> successes | failures | best against worst  (extraction)  -> screen -> judge -> experiences

Validation rollouts and held-out tasks are refused. A failed model call loses only its own result and is counted by
kind; an unjudged experience is never kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from agentevolver.llm import (
    BudgetExceeded,
    LLMContextOverflow,
    LLMError,
    LLMFiltered,
    LLMRefused,
    LLMReplyError,
    LLMTimeout,
    LLMUnavailable,
    Role,
)
from agentevolver.llm.asking import Asker
from agentevolver.llm.prompts import Messages
from agentevolver.utils import seeds
from experience_manager import prompt_injection, prompts
from experience_manager.attempts import Group, PastAttempt
from experience_manager.experience import BETWEEN, Category, Experience, mentions, places_in
from experience_manager.settings import DistillationSettings

if TYPE_CHECKING:
    from agentevolver.llm import LLM

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)
# Counter of a lost call: the first kind that matches.
_CALLS: tuple[tuple[type[LLMError], str], ...] = (
    (LLMFiltered, "calls_filtered"),
    (LLMContextOverflow, "calls_too_long"),
    (LLMRefused, "calls_refused"),
    (LLMTimeout, "calls_timed_out"),
    (LLMUnavailable, "calls_unavailable"),
    (LLMReplyError, "calls_unusable"),
)


@dataclass(slots=True)
class Distilled:
    experiences: list[Experience] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    exhausted: bool = False  # the model budget is spent
    interrupted: bool = False  # calls were lost that may succeed when retried
    problem: str = ""  # error of the last lost call
    env_type: str = ""  # set if the run has several environments


@dataclass(frozen=True, slots=True)
class _Source:
    category: Category
    build: prompts.Build
    attempts: tuple[PastAttempt, ...]  # the judge sees the transcript of the first one


class Distiller:
    """Distils many groups at once on one event loop."""

    def __init__(
        self, llm: LLM, settings: DistillationSettings, *, author: str = "", held_out: Collection[str] = ()
    ) -> None:
        """`author`: the model's name in records. `held_out`: ids of tasks that are never distilled."""
        # No redraws of filtered replies: `_judgements` asks about each experience alone instead.
        self._asker = Asker(llm, redraws=())
        self._settings = settings
        self._limits = prompts.PromptLimits(settings.max_chars, settings.max_transcript_chars)
        self._author = author
        self._held_out = frozenset(held_out)

    async def distil(self, group: Group, step: int | None = None) -> Distilled:
        """Return a group's experiences; raises nothing but cancellation."""
        result = Distilled()
        attempts = [a for a in group if not a.validation and a.task_id not in self._held_out and a.steps]
        result.counts["groups"] += 1
        result.counts["rollouts"] += len(attempts)
        result.counts["refused"] += len(group) - len(attempts)
        sources = self._sources(attempts)
        drafts = await asyncio.gather(*(self._extract(source, step, result) for source in sources))
        # The results of one attempt are judged in one call, which reads its transcript once.
        of_attempt: dict[PastAttempt, list[Experience]] = {}
        for source, drawn in zip(sources, drafts, strict=True):
            of_attempt.setdefault(source.attempts[0], []).extend(drawn)
        judged = await asyncio.gather(*(self._judge(of, attempt, result) for attempt, of in of_attempt.items()))
        turns = {attempt: iter(of) for attempt, of in zip(of_attempt, judged, strict=True)}
        in_order = [
            next(turns[source.attempts[0]]) for source, drawn in zip(sources, drafts, strict=True) for _ in drawn
        ]
        result.experiences = [experience for experience in in_order if experience is not None]
        return result

    def _sources(self, attempts: Sequence[PastAttempt]) -> list[_Source]:
        limit = self._settings.max_experiences
        most = self._settings.max_per_kind or len(attempts)
        ranked = sorted(attempts, key=lambda a: (-a.score, len(a.steps), a.trajectory_id))
        successes = [a for a in ranked if a.success][:most]
        failures = [a for a in reversed(ranked) if not a.success][:most]
        sources = [
            _Source(category, partial(prompts.extract, attempt, limit), (attempt,))
            for category, chosen in ((Category.SUCCESS, successes), (Category.FAILURE, failures))
            for attempt in chosen
        ]
        if ranked and ranked[0].score > ranked[-1].score:
            pair = (ranked[0], ranked[-1])
            sources.append(_Source(Category.COMPARATIVE, partial(prompts.compare, *pair, limit), pair))
        return sources

    async def _extract(self, source: _Source, step: int | None, result: Distilled) -> list[Experience]:
        reply = await self._ask(source.build, prompts.Proposals, result)
        if isinstance(reply, LLMError):
            result.counts["failed_extraction"] += 1
            return []
        if reply.left_out:
            result.counts["malformed"] += reply.left_out
        kept = []
        for number, proposal in enumerate(reply.experiences[: self._settings.max_experiences]):
            result.counts[f"extracted_{source.category.value}"] += 1
            experience = self._experience(proposal, number, source, step)
            problem = prompt_injection.problem_with(
                experience.when_to_use, experience.content
            ) or prompt_injection.problem_with_text(experience.scope)
            if problem is None:
                kept.append(experience)
            else:
                result.counts["screened"] += 1
                logger.info("an experience of task %s was screened out: %s", source.attempts[0].task_id, problem)
        return kept

    def _experience(
        self, proposal: prompts.ProposedExperience, number: int, source: _Source, step: int | None
    ) -> Experience:
        first = source.attempts[0]
        said, told = prompt_injection.tidy(proposal.scope), f"{first.opening}\n{first.task}"
        experience = Experience(
            when_to_use=prompt_injection.tidy(proposal.when_to_use),
            content=prompt_injection.tidy(proposal.content),
            # Retrieval matches places against opening and task: a place that neither names would never match.
            scope=f" {BETWEEN} ".join(place for place in places_in(said) if mentions(told, place)),
            category=source.category,
            validation_score=0.0,
            confidence=proposal.confidence,
            author=self._author,
            step=step,
            task_query=first.task,
            task_ids=tuple(dict.fromkeys(attempt.task_id for attempt in source.attempts)),
            trajectory_ids=tuple(attempt.trajectory_id for attempt in source.attempts if attempt.trajectory_id),
            tags=tuple(prompt_injection.tidy(tag)[:60] for tag in proposal.tags[:8]),
        )
        return (
            experience
            if (draws := seeds.current()) is None
            else replace(experience, id=_named(draws, experience, number))
        )

    async def _judge(
        self, drafts: Sequence[Experience], attempt: PastAttempt, result: Distilled
    ) -> list[Experience | None]:
        """Return each experience with its score, or None if the judge rejects it or gives no verdict."""
        judged = []
        for draft, judgement in zip(
            drafts, await self._judgements(drafts, attempt, result) if drafts else (), strict=True
        ):
            valid = judgement is not None and judgement.valid and judgement.score >= self._settings.min_score
            result.counts["failed_validation" if judgement is None else "valid" if valid else "invalid"] += 1
            judged.append(replace(draft, validation_score=judgement.score) if valid and judgement is not None else None)
        return judged

    async def _judgements(
        self, drafts: Sequence[Experience], attempt: PastAttempt, result: Distilled
    ) -> list[prompts.Judgement | None]:
        reply = await self._ask(partial(prompts.validate, drafts, attempt), prompts.Judgements, result)
        if isinstance(reply, LLMFiltered) and len(drafts) > 1:
            # The content filter may object to only one of the experiences.
            alone = await asyncio.gather(*(self._judgements([draft], attempt, result) for draft in drafts))
            return [judgement for of_one in alone for judgement in of_one]
        return [None] * len(drafts) if isinstance(reply, LLMError) else reply.of(len(drafts))

    async def _ask(self, build: prompts.Build, schema: type[M], result: Distilled) -> M | LLMError:
        if result.exhausted:
            return BudgetExceeded("the budget is already spent")
        limits = self._limits

        def prompt(room: int | None) -> Messages:
            nonlocal limits
            limits = prompts.fitting(build, self._limits, room)
            return build(limits)

        try:
            reply = await self._asker.structured(Role.SUMMARISER, prompt, schema)
            if limits != self._limits:
                result.counts["calls_shortened"] += 1
            return reply
        except BudgetExceeded as error:
            result.exhausted = result.interrupted = True
            result.problem = " ".join(str(error).split())
            logger.warning("distillation stops, the model budget is spent: %s", error)
            return error
        except LLMError as error:
            name = next((name for kind, name in _CALLS if isinstance(error, kind)), "calls_failed")
            result.counts[name] += 1
            result.problem = " ".join(str(error).split())
            result.interrupted |= not isinstance(error, LLMFiltered | LLMContextOverflow | LLMReplyError)
            logger.warning("a call of the summariser failed (%s): %s", name, error)
            return error


def _named(draws: seeds.Draws, experience: Experience, number: int) -> str:
    # The same rollouts give the same ids, so a repeated distillation after a resume inserts nothing twice.
    said = (experience.category.value, experience.scope, experience.when_to_use, experience.content)
    return seeds.digest(draws.run_seed, "experience", *experience.trajectory_ids, number, *said).hex()

"""Retrieval of guidance for a task: search, then optional reranking and rewriting by the summariser.

    task -> nearest with a matching scope -> [ranking] -> [rerank] -> top k -> [rewrite] or list -> text

An experience never guides the evaluation of its own source task. A rewritten text must pass the screen; if the model
fails, the experiences are listed unchanged. The text is empty if nothing is found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentevolver.llm import LLMError, Role
from experience_manager import prompt_injection, prompts
from experience_manager.attempts import name_of_task
from experience_manager.experience import Experience, normal
from experience_manager.index import Where
from experience_manager.pool import Pool
from experience_manager.question import Question, Retrieved
from experience_manager.ranking import Ranking
from experience_manager.settings import ExperienceSettings

if TYPE_CHECKING:
    from agentevolver.llm import LLM

logger = logging.getLogger(__name__)


class Retriever:
    def __init__(
        self, pool: Pool, settings: ExperienceSettings, llm: LLM | None = None, ranking: Ranking | None = None
    ) -> None:
        self._ranking = ranking
        self._pool = pool
        self._settings = settings
        self._llm = llm

    async def retrieve(self, question: Question, top_k: int | None = None) -> Retrieved:
        """Return guidance for a task; raises StoreError and EncoderUnavailable."""
        options, k = self._settings.retrieval, top_k or self._settings.reme.retrieve_top_k
        opening, task = question.opening_and_task
        where = Where(
            context=f"{opening}\n{task}" if options.match_scope else None,
            not_from=(question.task_id, name_of_task(opening, task)) if question.validation else (),
        )
        wanted = max(k, options.candidates) if options.rerank else k
        looked_at = max(wanted, self._ranking.candidates) if self._ranking is not None else wanted
        found = await asyncio.to_thread(self._pool.search, task, 2 * looked_at, where)
        shown = [
            hit for hit in found if _may_be_shown(hit.experience) and not question.evaluates_source_of(hit.experience)
        ]
        unique = {normal(hit.experience.content): hit for hit in reversed(shown)}
        hits = sorted(unique.values(), key=lambda hit: -hit.similarity)[:looked_at]
        if self._ranking is not None:
            hits = self._ranking.rank(hits, question)
        hits = hits[:wanted]
        similarity = {hit.experience.id: hit.similarity for hit in hits}
        chosen, notes = [hit.experience for hit in hits], []
        if options.rerank and chosen:
            chosen, note = await self._rerank(opening, task, chosen)
            notes += note
        kept = self._that_fit(chosen[:k])
        text = self._listed(kept)
        if options.rewrite and kept:
            text, note = await self._rewrite(opening, task, kept, text)
            notes += note
        kept = kept if text else []
        return Retrieved(text, tuple(kept), tuple(similarity[e.id] for e in kept), tuple(notes))

    async def _rerank(
        self, opening: str, task: str, experiences: Sequence[Experience]
    ) -> tuple[list[Experience], list[str]]:
        """Return the chosen experiences in the model's order; all unchanged if the call fails."""
        if self._llm is None:
            return list(experiences), ["rerank_failed"]
        try:
            reply = await self._llm.structured(
                Role.SUMMARISER, prompts.rerank(opening, task, experiences), prompts.Order
            )
        except LLMError as error:
            logger.warning("experiences could not be reranked: %s", error)
            return list(experiences), ["rerank_failed"]
        order = dict.fromkeys(number for number in reply.order if 1 <= number <= len(experiences))
        return [experiences[number - 1] for number in order], []

    async def _rewrite(
        self, opening: str, task: str, experiences: Sequence[Experience], listed: str
    ) -> tuple[str, list[str]]:
        """Return the model's text, empty if nothing applies; `listed` if the call or the screen fails."""
        if self._llm is None:
            return listed, ["rewrite_failed"]
        try:
            reply = await self._llm.structured(
                Role.SUMMARISER, prompts.rewrite(opening, task, experiences), prompts.Rewritten
            )
        except LLMError as error:
            logger.warning("experiences could not be rewritten: %s", error)
            return listed, ["rewrite_failed"]
        text = prompt_injection.tidy(reply.text)
        if len(text) > self._settings.retrieval.max_chars or prompt_injection.problem_with_text(text):
            logger.warning("a rewritten guidance was screened out: %r", text[:200])
            return listed, ["rewrite_screened"]
        return text, []

    def _that_fit(self, experiences: Sequence[Experience]) -> list[Experience]:
        fitting: list[Experience] = []
        for experience in experiences:
            if len(self._listed([*fitting, experience])) <= self._settings.retrieval.max_chars:
                fitting.append(experience)
        return fitting

    def _listed(self, experiences: Sequence[Experience]) -> str:
        options = self._settings.retrieval
        items = (
            options.item_template.format(index=i, when_to_use=e.when_to_use, content=e.content, scope=e.scope)
            for i, e in enumerate(experiences, 1)
        )
        return options.separator.join(items)


def _may_be_shown(experience: Experience) -> bool:
    # Checked again here: dumps and shared stores bring texts that this process never screened.
    return (
        experience.by_person
        or prompt_injection.problem_with_text(f"{experience.when_to_use}\n{experience.content}") is None
    )

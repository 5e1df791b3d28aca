"""Retrieval of guidance for a task: search, optional reranking and rewriting by the summariser, one text.

    task -> nearest that hold in this place -> [ranking] -> [rerank] -> top k -> [rewrite] or list -> text

An experience never guides the evaluation of a task that it was distilled from. A rewritten text is used only if it
passes the screen; if the model fails, the experiences are listed as they are. Nothing found is an empty text, never an
error.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentevolver.llm import LLMError, Role
from experience_manager import prompts, screen
from experience_manager.attempts import name_of_task, opening_and_task
from experience_manager.experience import Experience, normal
from experience_manager.guide import Message
from experience_manager.index import Where
from experience_manager.pool import Pool
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Hit

if TYPE_CHECKING:
    from agentevolver.llm import LLM

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """Retrieval request: a task's opening messages, its own wording if it has one, whether this is its evaluation, its
    step and its index in the step."""

    task_id: str
    messages: tuple[Message, ...]
    query: str | None = None
    validation: bool = False
    step: int = 0
    place: int = 0
    env_type: str = ""

    @property
    def opening_and_task(self) -> tuple[str, str]:
        return opening_and_task(self.messages, self.query)

    def evaluates_source_of(self, experience: Experience) -> bool:
        """Whether this evaluates a task that the experience was distilled from, by its ids or else its wording."""
        opening, task = self.opening_and_task
        if experience.task_ids:
            own = not {self.task_id, name_of_task(opening, task)}.isdisjoint(experience.task_ids)
        else:
            own = bool(experience.task_query) and normal(experience.task_query) == normal(task)
        return self.validation and own


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Guidance found for a task: the text, and the experiences in it; `notes` names what failed."""

    text: str = ""
    experiences: tuple[Experience, ...] = ()
    similarities: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


class Ranker(Protocol):
    """Order of the experiences found for a task."""

    candidates: int
    """How many of the nearest experiences are ranked."""

    def rank(self, hits: Sequence[Hit], question: Question) -> list[Hit]:
        """Return the hits, best first; they come sorted by similarity."""
        ...


class Retriever:
    def __init__(
        self, pool: Pool, settings: ExperienceSettings, llm: LLM | None = None, ranking: Ranker | None = None
    ) -> None:
        """Without `llm` nothing is reranked or rewritten."""
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
        found = await asyncio.to_thread(
            self._pool.search, self._text(question, task), 2 * looked_at, where, options.min_similarity
        )
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

    def _text(self, question: Question, task: str) -> str:
        if self._settings.query == "task":
            return task
        return json.dumps(
            [{"role": m["role"], "content": m.get("content")} for m in question.messages], ensure_ascii=False
        )

    async def _rerank(
        self, opening: str, task: str, experiences: Sequence[Experience]
    ) -> tuple[list[Experience], list[str]]:
        """Return the experiences that the model chose, in its order; all unchanged if it fails."""
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
        """Return the model's text, empty if nothing applies, or the list if it fails or its text is screened out."""
        if self._llm is None:
            return listed, ["rewrite_failed"]
        try:
            reply = await self._llm.structured(
                Role.SUMMARISER, prompts.rewrite(opening, task, experiences), prompts.Rewritten
            )
        except LLMError as error:
            logger.warning("experiences could not be rewritten: %s", error)
            return listed, ["rewrite_failed"]
        text = screen.tidy(reply.text)
        if len(text) > self._settings.retrieval.max_chars or screen.problem_with_text(text):
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
    """Whether an experience may reach a policy; a person's text is not screened."""
    return experience.by_person or screen.problem_with_text(f"{experience.when_to_use}\n{experience.content}") is None

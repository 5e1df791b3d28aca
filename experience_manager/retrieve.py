"""Retrieval of guidance for a task: search, optional reranking and rewriting by the summariser, one text.

    task -> nearest that hold in this place -> [rank by utility] -> [rerank] -> top k -> [rewrite] or list -> text

An experience that was distilled from a task never guides that task's own evaluation. What the model makes of
experiences is only used if it passes the screen; if the model fails, the experiences are listed as they are. Nothing
found is an empty text, never an error. Raises StoreError and EncoderUnavailable, which whoever asks turns into an
unguided rollout.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, sqrt
from typing import TYPE_CHECKING

from agentevolver.llm import LLMError, Role
from experience_manager import prompts, screen
from experience_manager.attempts import name_of_task, opening_and_task
from experience_manager.experience import Experience, normal
from experience_manager.guide import Message
from experience_manager.index import Where
from experience_manager.pool import Pool
from experience_manager.settings import ExperienceSettings, UtilitySettings
from experience_manager.store import Hit
from experience_manager.utility import Belief

if TYPE_CHECKING:
    from agentevolver.llm import LLM

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """Retrieval request: a task's opening messages, its own wording if it has one, whether this is its evaluation,
    which task of which step it is, and of which environment."""

    task_id: str
    messages: tuple[Message, ...]
    query: str | None = None
    validation: bool = False
    step: int = 0
    place: int = 0
    env_type: str = ""

    @property
    def opening_and_task(self) -> tuple[str, str]:
        """What stands before the task, and the task."""
        return opening_and_task(self.messages, self.query)

    def evaluates_source_of(self, experience: Experience) -> bool:
        """Whether this is the evaluation of a task that an experience was distilled from;
        without task ids its task's wording tells."""
        opening, task = self.opening_and_task
        if experience.task_ids:
            own = not {self.task_id, name_of_task(opening, task)}.isdisjoint(experience.task_ids)
        else:
            own = bool(experience.task_query) and normal(experience.task_query) == normal(task)
        return self.validation and own


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Guidance found for a task: the text, and the experiences that are in it; `notes` says what went less well."""

    text: str = ""
    experiences: tuple[Experience, ...] = ()
    similarities: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


class Retriever:
    """Retrieval from one pool."""

    def __init__(self, pool: Pool, settings: ExperienceSettings, llm: LLM | None = None) -> None:
        """Without `llm` nothing is reranked or rewritten."""
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
        utility = self._settings.utility
        looked_at = max(wanted, utility.candidates) if utility.enable else wanted
        found = await asyncio.to_thread(self._pool.search, self._text(question, task), 2 * looked_at, where)
        shown = [
            hit for hit in found if _may_be_shown(hit.experience) and not question.evaluates_source_of(hit.experience)
        ]
        unique = {normal(hit.experience.content): hit for hit in reversed(shown)}
        hits = sorted(unique.values(), key=lambda hit: -hit.similarity)[:looked_at]
        if utility.enable:
            hits = ranked(hits, utility, exploring=explores(question, utility.explore))
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
        """Return the experiences that the model chose, in its order; all of them as they were if it fails."""
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
        """Return the model's text, empty if it says that nothing applies;
        the list if it fails or writes what may not be shown."""
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
        """Return those that the list has room for, the first ones first."""
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


def ranked(hits: Sequence[Hit], utility: UtilitySettings, *, exploring: bool) -> list[Hit]:
    """Return hits by similarity and paired utility together, best first; exploring: first what may be worst for all
    that is known (a standard deviation below the mean), which is what a verdict on it needs."""
    if exploring:
        return sorted(hits, key=lambda hit: (_lower_bound(hit.experience, utility.prior_sd), -hit.similarity))
    return sorted(hits, key=lambda hit: -hit.similarity - utility.rank_weight * hit.experience.paired_utility)


def _lower_bound(experience: Experience, prior_sd: float) -> float:
    belief = Belief(experience.paired, experience.paired_utility, experience.paired_precision)
    return belief.mean - sqrt(belief.variance(prior_sd))


def explores(question: Question, share: float) -> bool:
    """Whether a task is one of the share of its step's training tasks that explore; they are spread evenly."""
    number = question.place + question.step
    return not question.validation and floor((number + 1) * share) > floor(number * share)


def _may_be_shown(experience: Experience) -> bool:
    """Whether an experience may reach a policy; what a person wrote is the person's own business."""
    return experience.by_person or screen.problem_with_text(f"{experience.when_to_use}\n{experience.content}") is None

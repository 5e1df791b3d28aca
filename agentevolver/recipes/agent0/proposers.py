"""Language models in rounds: the role `proposer`, which writes tasks in the place of a policy,
and the judge, which labels them.

What a proposer writes is read by the environment `propose`, as a policy's proposals are, so that it is refused by the
same names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

from pydantic import BaseModel, Field

from agentevolver.llm.client import LLM
from agentevolver.llm.errors import LLMReplyError
from agentevolver.llm.prompts import Messages, messages
from agentevolver.llm.settings import Role
from agentevolver.recipes.agent0.pool import Draw
from agentevolver.recipes.agent0.settings import PROPOSE_ENV
from agentevolver.recipes.agent0.types import Dropped, Proposal
from agentevolver.utils.errors import last_line
from agentevolver.utils.seeds import derived
from env_service.client import AsyncEnvClient

_PROPOSE = (
    "You write one task for another agent, as the section <opening> says; <task> is what yours must be of. Your reply "
    "is read by a program: write the blocks that <opening> asks for, and nothing else."
)
_JUDGE = (
    "The section <task> is a question that somebody made up. Say its answer: as short as it can be, a number or a few "
    "words, without a unit that the question names. <reference> is what a program that came with it printed, where "
    "there is one; it may be wrong. Where the question has no single answer, say null.\n"
    'Reply with JSON alone: {"reason": "one sentence", "answer": "7" or null}'
)


class JudgedAnswer(BaseModel):
    """The judge's reply."""

    reason: str = ""
    answer: str | None = Field(None, max_length=400)


class RoleProposer:
    """The role `proposer` (`agentevolver.recipes.agent0.pool.Proposer`).

    Args:
        llm: the roles' models.
        client: of the environment service, which reads what was written.
        seed: of the run.
    """

    def __init__(self, llm: LLM, client: AsyncEnvClient, seed: int) -> None:
        self._llm = llm
        self._client = client
        self._seed = seed

    async def propose(self, draws: Sequence[Draw]) -> list[Proposal]:
        """Return a proposal for each draw; what cannot be read is refused, as `propose` says.

        Raises:
            LLMError: the model did not answer.
            EnvServiceError: the environment service failed.
        """
        return list(await asyncio.gather(*map(self._propose, draws)))

    async def _propose(self, draw: Draw) -> Proposal:
        async def reply(opening: str, task: str) -> str:
            seed = derived(self._seed, "proposer", draw.proposal_id)
            return (await self._llm.chat(Role.PROPOSER, prompt(opening, task), seed=seed)).answer

        try:
            return await read_proposal(self._client, draw, reply)
        except LLMReplyError as error:
            return Proposal(draw.proposal_id, draw.seed, refused=f"malformed: {last_line(error)}")


async def read_proposal(
    client: AsyncEnvClient, draw: Draw, write: Callable[[str, str], Awaitable[str]], seed: str | None = None
) -> Proposal:
    """Return what the environment `propose` reads out of a message; what is no proposal is refused there, by name.

    Args:
        client: of the environment service.
        draw: what is proposed for.
        write: makes the message, told the rules and what the draw's seed says.
        seed: what the proposal was made from; None: the draw's own.

    Raises:
        EnvServiceError: the environment service failed.
    """
    instance_id = f"proposal-{uuid4().hex}"
    began = await client.create_instance(PROPOSE_ENV, draw.seed, instance_id, {"verbose": True})
    try:
        opening, task = (str(message["content"]) for message in began["state"])
        message = {"role": "assistant", "content": await write(opening, task)}
        await client.step(instance_id, message, step_index=0)
        state = await client.get_tools_info(instance_id, params={"what": "state"})
        return Proposal.from_facts(draw.proposal_id, draw.seed if seed is None else seed, state["facts"])
    finally:
        await asyncio.shield(client.release_instance(instance_id))


class RoleJudge:
    """The role `judge` as who labels proposals (`agentevolver.recipes.agent0.labels.Judge`).

    Args:
        llm: the roles' models.
        seed: of the run.
    """

    def __init__(self, llm: LLM, seed: int) -> None:
        self._llm = llm
        self._seed = seed

    async def __call__(self, proposal: Proposal, executed: str | Dropped | None) -> str | Dropped:
        """Return the answer of a proposal's question, or why there is none; raises LLMError.

        Args:
            executed: what its program gave, None where it has none.
        """
        sections = {"task": proposal.question, "reference": executed if isinstance(executed, str) else ""}
        try:
            said = await self._llm.structured(
                Role.JUDGE,
                messages("judge/answer", _JUDGE, sections),
                JudgedAnswer,
                temperature=0.0,
                seed=derived(self._seed, "judge", proposal.proposal_id),
            )
        except LLMReplyError as error:
            return Dropped("unjudged", last_line(error))
        if not (said.answer or "").strip():
            return Dropped("unanswerable", said.reason[:200])
        return str(said.answer).strip()


def prompt(opening: str, task: str) -> Messages:
    """Return what the role `proposer` is asked: the opening of the environment `propose`, and what the seed says."""
    return messages("proposer/task", _PROPOSE, {"opening": opening, "task": task})

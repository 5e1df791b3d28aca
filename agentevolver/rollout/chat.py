"""Episodes of models that are not trained: any OpenAI-compatible endpoint in the policy's place, or beside it as the
writer of summaries.

Such a model takes chat messages instead of token ids and says no log-probs, so nothing of its episodes is trained on.
Contexts work all
the same: with `plain_renderer` they count about four characters as a token. Every failure of an endpoint becomes an
    `EngineError`.
"""

from __future__ import annotations

from typing import Any

from agentevolver.llm import LLM, LLMError, Reply, Role
from agentevolver.rollout.engines import Said, Summariser
from agentevolver.rollout.policy import EngineError
from context_manager.chat import ChatRenderer
from context_manager.plain import PlainTokenizer


class LLMEngine:
    """A role's model behind the `ChatEngine` interface.

    Args:
        llm: the roles' models.
        role: whose model it is.
        seed: whether each call gets a seed of its own, so that a cache of replies does not make all rollouts of a task
            the same one.
    """

    def __init__(self, llm: LLM, role: Role, *, seed: bool = True) -> None:
        self._llm = llm
        self._role = role
        self._seed = seed
        self._calls = 0

    async def converse(self, request_id: str, messages: list[dict[str, Any]], sampling_params: dict[str, Any]) -> Said:
        """Ask the role's model."""
        self._calls += 1
        sampling = {**sampling_params, **({"seed": self._calls} if self._seed else {})}
        reply = await _asked(self._llm, self._role, messages, sampling)
        return Said(reply.text, reply.finish_reason == "length")


def role_summariser(llm: LLM) -> Summariser:
    """Return what lets the summariser's model write the summaries of a context (`summary_by: summariser`)."""

    async def summarise(messages: list[dict[str, Any]], max_tokens: int) -> str:
        return (await _asked(llm, Role.SUMMARISER, messages, {"max_tokens": max_tokens})).text

    return summarise


def plain_renderer() -> ChatRenderer:
    """Return a renderer for models whose tokenizer is not at hand."""
    return ChatRenderer(PlainTokenizer())


async def _asked(llm: LLM, role: Role, messages: list[dict[str, Any]], sampling: dict[str, Any]) -> Reply:
    try:
        return await llm.chat(role, messages, **sampling)
    except LLMError as error:
        raise EngineError(f"{role.value}: {type(error).__name__}: {error}") from error

"""The policy (token ids in, sampled ids out), or a chat model in its place (messages in, text out).

A chat model is any OpenAI-compatible endpoint. It returns no log-probs, so its episodes are not trained on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import httpx

from agentevolver.llm import LLM, LLMError, LLMReply, Role
from agentevolver.llm.errors import LLMUnavailable, ServedModel
from agentevolver.rollout.engine import EngineError, EngineRefused, Generated
from agentevolver.rollout.tools.schema import ParsedCall
from agentevolver.rollout.whole_reply import whole
from agentevolver.utils.errors import last_line
from agentevolver.utils.run_key import server_key
from context_manager.chat import ChatRenderer, PlainTokenizer
from context_manager.messages import with_calls

logger = logging.getLogger(__name__)


class VerlEngine:
    """verl's rollout servers behind the `Engine` interface; `seeded` says whether requests keep their seeds."""

    def __init__(
        self, server_manager: Any, timeout_s: float, server_key: Callable[[], str] = server_key, *, seeded: bool = True
    ) -> None:
        self._server_manager = server_manager
        self._timeout_s = timeout_s
        self._server_key = server_key
        # On a GPU a seed makes vLLM sample each request separately (slower), and only deterministic kernels repeat the
        # result.
        self._seeded = seeded
        self._names: dict[str, str] = {}

    async def served(self) -> ServedModel:
        """Return the policy's chat endpoint, for roles that the policy plays. Raises LLMUnavailable.

        On GPUs shared with training it is available during rollouts only.
        """
        request_id = "role"
        try:
            address, _ = await asyncio.wait_for(
                self._server_manager._acquire_server(request_id, prompt_ids=[]), self._timeout_s
            )
            self._server_manager._release_server(address, request_id=request_id)
            url, key = f"http://{address}/v1", self._server_key()
            if address not in self._names:
                headers = {"Authorization": f"Bearer {key}"}
                async with httpx.AsyncClient(trust_env=False, timeout=self._timeout_s, headers=headers) as client:
                    self._names[address] = str(
                        (await client.get(f"{url}/models")).raise_for_status().json()["data"][0]["id"]
                    )
        except Exception as error:  # Ray re-raises the router's errors, of any type, and the server may answer anything
            raise LLMUnavailable(f"the policy's server does not answer: {type(error).__name__}: {error}") from error
        return ServedModel(url, self._names[address], key)

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        """Sample through verl. `request_id` keeps an episode's turns on one server, which caches their prefix."""
        kept = {name: value for name, value in sampling_params.items() if self._seeded or name != "seed"}
        if (structure := kept.get("structured_outputs")) is not None:
            kept["structured_outputs"] = structured(structure)
        try:
            output = await self._in_time(self._sampled(request_id, prompt_ids, kept))
        except TimeoutError as error:
            raise EngineError(
                f"no reply within {self._timeout_s:.0f} s (actor_rollout_ref.rollout.step_timeout_s)"
            ) from error
        except Exception as error:  # Ray re-raises the server's errors, each as its own type
            # By name: vLLM is not imported here, and Ray's copy of an error inherits from the error's class.
            refused = any(kind.__name__ == "VLLMClientError" for kind in type(error).__mro__)
            raise (EngineRefused if refused else EngineError)(f"{type(error).__name__}: {last_line(error)}") from error
        ids = list(output.token_ids)
        if not ids or output.log_probs is None or len(output.log_probs) != len(ids):
            raise EngineError(
                f"the server returned {len(ids)} tokens (stop reason {output.stop_reason!r}) without their log-probs"
            )
        version = output.extra_fields
        return Generated(
            ids,
            [float(p) for p in output.log_probs],
            int(version["min_global_steps"]),
            int(version["max_global_steps"]),
        )

    async def _in_time(self, call: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wait_for(call, self._timeout_s)

    async def _sampled(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return await self._asked(request_id, prompt_ids, whole(sampling_params))

    async def _asked(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return await self._server_manager.generate(
            request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params
        )


def structured(structure: dict[str, Any]) -> Any:
    """Convert a JSON-ready form into vLLM's `StructuredOutputsParams`."""
    from vllm.sampling_params import StructuredOutputsParams  # imported here: it takes seconds, and few agents need it

    return StructuredOutputsParams(**structure)


# (messages, maximum tokens) -> summary of the messages. Raises EngineError.
Summariser = Callable[[list[dict[str, Any]], int], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A chat model's reply; `truncated` means cut by the token limit, `calls` are native tool calls."""

    text: str
    truncated: bool = False
    calls: tuple[ParsedCall, ...] = ()

    @property
    def written(self) -> str:
        """The reply as text, with calls in Hermes' format."""
        return with_calls(self.text, [call.to_openai("") for call in self.calls])


@runtime_checkable
class ChatEngine(Protocol):
    """A chat model without log-probs."""

    async def converse(
        self,
        request_id: str,
        messages: list[dict[str, Any]],
        sampling_params: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
    ) -> ChatReply:
        """Reply to a conversation. `tools` are given only with native calls. Raises EngineError."""
        ...


class LLMEngine:
    """A role's model behind the `ChatEngine` interface; `seed` gives each call its own seed."""

    def __init__(self, llm: LLM, role: Role, *, seed: bool = True) -> None:
        self._llm = llm
        self._role = role
        self._seed = seed
        self._calls = 0

    async def converse(
        self,
        request_id: str,
        messages: list[dict[str, Any]],
        sampling_params: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
    ) -> ChatReply:
        self._calls += 1
        # Without different seeds a reply cache would make all rollouts of a task equal.
        sampling = {**sampling_params, **({"seed": self._calls} if self._seed else {})}
        reply = await _asked(self._llm, self._role, messages, sampling, tools)
        calls = tuple(ParsedCall(call.name, _json(call.arguments)) for call in reply.tool_calls)
        return ChatReply(reply.text, reply.finish_reason == "length", calls)


def role_summariser(llm: LLM) -> Summariser:
    """Return a function that summarises a context with the summariser's model (`summary_by: summariser`)."""

    async def summarise(messages: list[dict[str, Any]], max_tokens: int) -> str:
        return (await _asked(llm, Role.SUMMARISER, messages, {"max_tokens": max_tokens})).text

    return summarise


def plain_renderer() -> ChatRenderer:
    """Return a renderer for models without a local tokenizer; it counts about four characters as a token."""
    return ChatRenderer(PlainTokenizer())


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


async def _asked(
    llm: LLM,
    role: Role,
    messages: list[dict[str, Any]],
    sampling: dict[str, Any],
    tools: list[dict[str, Any]] | None = None,
) -> LLMReply:
    try:
        return await llm.chat(role, messages, tools, **sampling)
    except LLMError as error:
        raise EngineError(f"{role.value}: {type(error).__name__}: {error}") from error

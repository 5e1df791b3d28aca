"""The policy's side of an episode: token ids in, sampled ids out, and one kind of error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from agentevolver.llm.errors import LLMUnavailable, ServedModel
from agentevolver.transport.server_key import server_key

logger = logging.getLogger(__name__)


class EngineError(Exception):
    """The engine that serves the policy gave no usable reply. Ends the attempt as `llm_error`; never becomes a
    message."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What was sampled: ids with their log-probs (same length), and the weight versions that sampled them."""

    ids: list[int]
    log_probs: list[float]
    min_version: int
    max_version: int


class Engine(Protocol):
    """Whatever samples from the policy."""

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        """Sample a reply to `prompt_ids`. Raises EngineError."""
        ...


class VerlEngine:
    """verl's rollout servers behind the `Engine` interface.

    Args:
        server_manager: verl's `LLMServerClient`.
        timeout_s: seconds that one call may take.
        server_key: returns the bearer token that the servers ask for over HTTP.
        seeded: whether requests keep their seeds. On a GPU vLLM draws for each of them by itself then, and other
            kernels may make another token of the same draw, so that it costs and gives nothing unless they are asked to
            be deterministic.
    """

    def __init__(
        self, server_manager: Any, timeout_s: float, server_key: Callable[[], str] = server_key, *, seeded: bool = True
    ) -> None:
        self._server_manager = server_manager
        self._timeout_s = timeout_s
        self._server_key = server_key
        self._seeded = seeded
        self._names: dict[str, str] = {}

    async def served(self) -> ServedModel:
        """Return where the policy answers chat completions, for roles of language models that it plays; raises
        LLMUnavailable.

        It is served during rollouts: on GPUs that it shares with training it sleeps in between.
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
        except (
            Exception
        ) as error:  # the boundary: Ray raises whatever the router raised, and the server may answer anything
            raise LLMUnavailable(f"the policy's server cannot be asked: {type(error).__name__}: {error}") from error
        return ServedModel(url, self._names[address], key)

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        """Sample through verl. `request_id` keeps the turns of an episode on one server, where their prefix is
        cached."""
        kept = {name: value for name, value in sampling_params.items() if self._seeded or name != "seed"}
        try:
            call = self._server_manager.generate(request_id=request_id, prompt_ids=prompt_ids, sampling_params=kept)
            output = await asyncio.wait_for(call, self._timeout_s)
        except TimeoutError as error:
            raise EngineError(
                f"no reply within {self._timeout_s:.0f} s (actor_rollout_ref.rollout.step_timeout_s)"
            ) from error
        except Exception as error:  # the boundary: Ray raises whatever the server raised, each as its own type
            raise EngineError(f"{type(error).__name__}: {str(error).splitlines()[-1] if str(error) else ''}") from error
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

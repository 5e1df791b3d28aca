"""The policy's engine for rollouts that continue across updates: the new weights complete an interrupted reply.

When sampling is aborted, verl's server returns the tokens so far with their log-probs and weight versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from agentevolver.rollout.pause import PAUSE, EnginePause
from agentevolver.rollout.policy import VerlEngine
from agentevolver.utils import seeds

ABORTED = ("aborted", "abort")
# Parameters that vLLM would apply to the second piece alone. Replies with them restart from the beginning.
OF_WHOLE_REPLIES = frozenset(
    {"structured_outputs", "stop", "bad_words", "min_tokens", "presence_penalty", "frequency_penalty"}
)
# Wait after an abort without an announced pause: the trainer's message may arrive after vLLM's abort.
AGAIN_S = 0.05


class ResumingEngine(VerlEngine):
    """verl's rollout servers across their pauses, which do not count as a call's time.

    `validation`: whether its calls belong to validation, during which training calls wait.
    """

    # verl's client for this (`FullyAsyncLLMServerClient`, verl 0.9.1) waits a second after each abort, repeats the
    # seed, and counts waits as the reply's time.
    def __init__(
        self,
        server_manager: Any,
        timeout_s: float,
        *,
        validation: bool = False,
        pause: EnginePause = PAUSE,
        **options: Any,
    ) -> None:
        super().__init__(server_manager, timeout_s, **options)
        self._validation = validation
        self._pause = pause

    async def _in_time(self, call: Coroutine[Any, Any, Any]) -> Any:
        return await self._pause.within(call, self._timeout_s, validation=self._validation)

    async def _sampled(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        room, seed = int(sampling_params["max_tokens"]), sampling_params.get("seed")
        whole = not OF_WHOLE_REPLIES.isdisjoint(sampling_params)
        ids: list[int] = []
        log_probs: list[float] = []
        versions: list[int] = []
        for piece in range(10**9):
            await self._pause.over(validation=self._validation)
            sampling = {**sampling_params, "max_tokens": room - len(ids)}
            if piece and seed is not None:
                # The same seed would repeat the random numbers of the reply's beginning.
                sampling["seed"] = seeds.derived(seed, "resumed", piece, len(ids))
            output = await self._asked(request_id, [*prompt_ids, *ids], sampling)
            is_aborted = output.stop_reason in ABORTED
            if output.token_ids and not (whole and is_aborted):
                ids += output.token_ids
                log_probs += output.log_probs or []
                fields = output.extra_fields
                versions += [int(fields["min_global_steps"]), int(fields["max_global_steps"])]
            if not is_aborted or len(ids) >= room:
                break
            if not self._pause.is_on(validation=self._validation):
                await asyncio.sleep(AGAIN_S)
        told = {"min_global_steps": min(versions, default=0), "max_global_steps": max(versions, default=0)}
        return TokenOutput(token_ids=ids, log_probs=log_probs, stop_reason=output.stop_reason, extra_fields=told)

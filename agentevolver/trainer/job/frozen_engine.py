"""Client of the frozen-policy server (`agentevolver.trainer.job.frozen`): token ids in, sampled ids out."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
from omegaconf import DictConfig

from agentevolver.rollout.engine import EngineError, EngineRefused, Generated
from agentevolver.utils.retry import BackoffPolicy, Retries
from agentevolver.utils.secrets import secret

PLAYER_TOKEN = "PLAYER_TOKEN"
"""Name of the secret that the server requires, if set."""
# A server that is started again loads vLLM first: half a minute on a CPU, minutes with a large model.
PATIENCE = BackoffPolicy(tries=200, budget_s=600.0, first_wait_s=0.5, max_wait_s=10.0)


class FrozenEngine:
    """The `Engine` of one checkpoint, for one event loop. Log-probs are 0: a frozen policy is not trained.

    `timeout_s` limits one call; `seeded` keeps the requests' seeds; `key` None means the secret `PLAYER_TOKEN`, if set.
    """

    def __init__(
        self,
        url: str,
        checkpoint: str,
        *,
        max_model_len: int,
        timeout_s: float,
        seeded: bool = True,
        key: str | None = None,
        patience: BackoffPolicy = PATIENCE,
    ) -> None:
        self._url = url
        self._checkpoint = checkpoint
        self._max_model_len = max_model_len
        self._timeout_s = timeout_s
        self._seeded = seeded
        self._patience = patience
        token = secret(PLAYER_TOKEN) if key is None else key
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        """Sample a reply. Raises EngineError."""
        room = self._max_model_len - len(prompt_ids)
        if room < 1:
            raise EngineError(f"a prompt of {len(prompt_ids)} tokens leaves no room in {self._max_model_len}")
        given = {name: value for name, value in sampling_params.items() if self._seeded or name != "seed"}
        given.pop("logprobs", None)
        given["max_tokens"] = max(1, min(given.get("max_tokens", room), room))
        asked = {"model": self._checkpoint, "prompt": prompt_ids, "return_token_ids": True, **given}
        answer = await self._ask(orjson.dumps(asked))
        try:
            (choice,) = answer["choices"]
            ids, reason = choice["token_ids"], choice["finish_reason"]
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"{self._url} answered no completion: {error!r}") from error
        if not ids or reason == "abort":
            raise EngineError(f"the engine returned no whole reply (finish reason {reason!r})")
        return Generated(ids, [0.0] * len(ids), 0, 0)

    async def _ask(self, body: bytes) -> Any:
        # A retry is safe: equal seeds give equal samples.
        retries = Retries(self._patience)
        while True:
            try:
                async with self._opened().post(f"{self._url}/v1/completions", data=body) as response:
                    status, payload = response.status, await response.read()
                if status == 200:
                    return orjson.loads(payload)
                why = f"HTTP {status} {payload[:300].decode('utf-8', 'replace')}"
                if status < 500:
                    raise (EngineRefused if status in (400, 422) else EngineError)(
                        f"checkpoint {self._checkpoint}: {why}"
                    )
            except TimeoutError as error:
                raise EngineError(
                    f"no reply within {self._timeout_s:.0f} s (actor_rollout_ref.rollout.step_timeout_s)"
                ) from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                why = repr(error)
            if (wait := retries.failed()) is None:
                raise EngineError(f"the server of frozen policies at {self._url} does not answer: {why}")
            await asyncio.sleep(wait)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def sampling_of(config: DictConfig, *, validation: bool = False) -> dict[str, Any]:
    """Return the sampling parameters of training or validation, as verl's agent loops make them."""
    rollout = config.actor_rollout_ref.rollout
    section = rollout.val_kwargs if validation else rollout
    return {name: section[name] for name in ("temperature", "top_p", "top_k")} | {"repetition_penalty": 1.0}

"""ReMe backend: client of a service with the routes of ReMe 0.1 to 0.3, ours or theirs.

No text of a failed request reaches a rollout. These raise RemeServiceError: a status other than 200, `success: false`,
an error text in place of an answer (some versions send one), and an answer that the screen refuses. Requests that write
are retried only if the connection was refused, so that nothing is counted or distilled twice.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp

from agentevolver.recipes.reme.messages import to_messages
from agentevolver.utils.retry import BackoffPolicy, Retries
from agentevolver.utils.secrets import secret
from experience_manager import prompt_injection
from experience_manager.attempts import Group
from experience_manager.backend import Backend, Settled
from experience_manager.distill import Distilled
from experience_manager.errors import ExperienceError
from experience_manager.experience import Experience, RecordError, from_reme
from experience_manager.question import Question, Retrieved
from experience_manager.settings import ExperienceSettings

TOKEN_VARIABLE = "EXPERIENCE_SERVICE_TOKEN"
_ERROR_TEXT = re.compile(r"^\[\w+\] failed\b")
# The service wants memories back as it sent them when their use is recorded; this many are kept.
_REMEMBERED = 20_000
# Seconds for a retrieval and for a summary; tries of a request.
TIMEOUT_S, SUMMARY_TIMEOUT_S = 60.0, 1200.0
TRIES = 2


class RemeServiceError(ExperienceError):
    """The experience service is unreachable, refused a request, or sent an invalid reply."""


class RemeBackend(Backend):
    """Backend on the service at `reme.base_url`, for one event loop."""

    def __init__(self, settings: ExperienceSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._memories: dict[str, dict[str, Any]] = {}

    async def retrieve(self, question: Question) -> Retrieved:
        reme = self._settings.reme
        opening, task = question.opening_and_task
        original = self._settings.preset == "original"
        query = json.dumps(list(question.messages), ensure_ascii=False) if original else task
        facts = {"opening": opening, "task_id": question.task_id, "validation": question.validation}
        body = {"query": query, "top_k": reme.retrieve_top_k, "workspace_id": reme.workspace_id, "metadata": facts}
        reply = await self._post("retrieve_task_memory", body, TIMEOUT_S, repeatable=True)
        answer = reply.get("answer")
        if not isinstance(answer, str) or _ERROR_TEXT.match(answer):
            raise RemeServiceError(
                f"{reme.base_url}/retrieve_task_memory gave no text as its answer: {str(answer)[:200]!r}"
            )
        text = prompt_injection.tidy(answer)
        problem = prompt_injection.problem_with_text(text) or (
            "too long" if len(text) > self._settings.retrieval.max_chars else None
        )
        if problem is not None:
            raise RemeServiceError(
                f"{reme.base_url}/retrieve_task_memory sent a text that must not be shown to a policy: {problem}"
            )
        experiences = self._read(reply)
        if any(question.evaluates_source_of(experience) for experience in experiences):
            return Retrieved(notes=("own_task_refused",))
        return Retrieved(text, tuple(experiences) if text else ())

    async def distil(self, group: Group, step: int | None) -> Distilled:
        reme = self._settings.reme
        usable = [attempt for attempt in group if not attempt.validation and attempt.steps]
        counts = Counter(groups=1, rollouts=len(usable), refused=len(group) - len(usable))
        if usable:
            body = {"trajectories": [to_messages(attempt) for attempt in usable], "workspace_id": reme.workspace_id}
            reply = await self._post("summary_task_memory", body, SUMMARY_TIMEOUT_S, repeatable=False)
            counts["stored"] = len(self._read(reply))
        return Distilled(counts=counts)

    async def settle(self, results: Iterable[Settled]) -> None:
        """Record uses, with one request for successes and one for failures; raises RemeServiceError."""
        known = {True: [], False: []}  # type: dict[bool, list[dict[str, Any]]]
        for result in results:
            if result.success is not None:
                known[result.success] += [self._memories[i] for i in result.experience_ids if i in self._memories]
        for success, memories in known.items():
            if memories:
                body = {
                    "workspace_id": self._settings.reme.workspace_id,
                    "memory_dicts": memories,
                    "update_utility": success,
                }
                await self._post("record_task_memory", body, TIMEOUT_S, repeatable=False)

    async def prune(self) -> int:
        """Let the service delete experiences of low utility and return how many; raises RemeServiceError."""
        options = self._settings.pruning
        if options.min_utility == 0:
            return 0
        thresholds = {"freq_threshold": options.min_uses, "utility_threshold": options.min_utility}
        body = {"workspace_id": self._settings.reme.workspace_id, **thresholds}
        reply = await self._post("delete_task_memory", body, TIMEOUT_S, repeatable=False)
        update = _mapping(_mapping(reply.get("metadata")).get("update_result"))
        count = update.get("deleted_count")
        return count if isinstance(count, int) else 0

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _read(self, reply: Mapping[str, Any]) -> list[Experience]:
        experiences = []
        listed = _mapping(reply.get("metadata")).get("memory_list")
        for memory in listed if isinstance(listed, list) else ():
            try:
                experience = from_reme(memory)
            except RecordError:
                continue
            experiences.append(experience)
            self._memories.pop(experience.id, None)
            self._memories[experience.id] = memory
        while len(self._memories) > _REMEMBERED:
            del self._memories[next(iter(self._memories))]
        return experiences

    async def _post(self, route: str, body: Mapping[str, Any], timeout_s: float, *, repeatable: bool) -> dict[str, Any]:
        reme = self._settings.reme
        url = f"{reme.base_url.rstrip('/')}/{route}"
        retries = Retries(BackoffPolicy(tries=TRIES, first_wait_s=2.0, max_wait_s=8.0))
        while True:
            again = True
            try:
                return await self._once(url, body, timeout_s)
            except aiohttp.ClientConnectorError as error:
                problem = f"cannot be reached: {error}"
            except (aiohttp.ClientError, TimeoutError, _Overloaded) as error:
                problem = str(error) or f"did not answer within {timeout_s:g} s"
                again = repeatable
            wait = retries.failed()
            if not again or wait is None:
                break
            await asyncio.sleep(wait)
        raise RemeServiceError(f"{url} {problem}; check exp_manager.reme.base_url and whether the service runs")

    async def _once(self, url: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._session is None:
            token = secret(TOKEN_VARIABLE)
            self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"} if token else {})
        async with self._session.post(url, json=body, timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
            text = await response.text(errors="replace")
            if response.status >= 500:
                raise _Overloaded(f"answered HTTP {response.status}: {text[:200]}")
            if response.status != 200:
                raise RemeServiceError(f"{url} refused with HTTP {response.status}: {text[:200]}")
        try:
            reply = json.loads(text)
        except json.JSONDecodeError as error:
            raise RemeServiceError(f"{url} answered with no JSON: {text[:200]!r}") from error
        if not isinstance(reply, dict) or reply.get("success") is False:
            raise RemeServiceError(f"{url} did not succeed: {text[:200]}")
        return reply


class _Overloaded(RuntimeError):
    """A status that a retry may change."""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

"""Client of the player. It returns plays that happened or raises; it never makes a number up.

Nobody loses anything by asking twice: a play follows from the weights, the task and its name alone. So what a server
that stops, or dies, did not answer is asked again, of the next one that the launcher starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import orjson

from agentevolver.coevolve.types import Play
from agentevolver.errors import last_line
from agentevolver.types import Task
from agentevolver.utils.retry import Retries, RetryPolicy
from agentevolver.utils.secrets import secret

if TYPE_CHECKING:
    import aiohttp

PLAYER_TOKEN = "PLAYER_TOKEN"
"""The secret that the player asks for, where it is set."""
CONNECT_TIMEOUT_S = 10.0
# A server that is started again loads vLLM first: a minute on a CPU, several with a large model.
PATIENCE = RetryPolicy(tries=200, budget_s=600.0, first_wait_s=0.5, max_wait_s=10.0)


class PlayerError(Exception):
    """No plays; the message says why."""


class PlayerUnavailable(PlayerError):
    """Nobody answered, for as long as the client waits."""


class PlayFailed(PlayerUnavailable):
    """An episode could not be played, after all its tries: the environment service or the engine failed."""


class PlayerRefused(PlayerError):
    """Refusal of the player: what was asked for cannot be played, however often:
    weights of another model, a task that is none."""


class Player(Protocol):
    """Whoever plays tasks with frozen policies."""

    async def play(
        self, checkpoint: Path | str, task: Task, n: int, name: str, validation: bool = False
    ) -> Sequence[Play]:
        """Return n episodes of `task`, in order; equal names
        with equal weights give equal samples. Raises PlayerError."""
        ...


class PlayerClient:
    """Client of the player over HTTP; for one event loop.
    Use it as an async context manager, or call `close` at the end.

    Args:
        url: of the server.
        key: its token; None: the secret `PLAYER_TOKEN`, if there is one.
        timeout_s: seconds that one call may take, waiting for others included.
        patience: how often and how long a server is asked that does not answer.
    """

    def __init__(
        self, url: str, key: str | None = None, *, timeout_s: float = 3600.0, patience: RetryPolicy = PATIENCE
    ) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._patience = patience
        self._headers = {"Content-Type": "application/json"}
        if token := key if key is not None else secret(PLAYER_TOKEN):
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def play(self, checkpoint: Path | str, task: Task, n: int, name: str, validation: bool = False) -> list[Play]:
        """Return n episodes of `task` by the policy at `checkpoint`, in order.

        Args:
            checkpoint: a Hugging Face folder, as the server's machine finds it.
            task: what is played.
            n: how many episodes, from 1.
            name: of what is drawn; equal names with equal weights give equal samples.
            validation: sample, and make instances, as validation does.

        Raises:
            PlayFailed: an episode failed, after its tries.
            PlayerUnavailable: the server did not answer.
            PlayerRefused: it will not play this.
        """
        asked = {"checkpoint": str(checkpoint), "task": task.to_dict(), "n": n, "name": name, "validation": validation}
        answer = await self._ask(orjson.dumps(asked))
        try:
            plays = [Play(**play) for play in answer["plays"]]
        except (KeyError, TypeError) as error:
            raise PlayerRefused(f"{self._url}: no player answers there: {error}") from error
        if len(plays) != n:
            raise PlayerRefused(f"{self._url} answered {len(plays)} plays for {n}: no player answers there")
        return plays

    async def _ask(self, body: bytes) -> dict[str, Any]:
        retries = Retries(self._patience)
        while True:
            try:
                return await self._try(body)
            except _TryAgain as error:
                if (wait := retries.failed(error.asked_s)) is None:
                    raise PlayerUnavailable(
                        f"the player at {self._url} does not answer, asked {retries.failures} times: {error}"
                    ) from error
            await asyncio.sleep(wait)

    async def _try(self, body: bytes) -> dict[str, Any]:
        import aiohttp

        try:
            async with self._opened().post(f"{self._url}/play", data=body, headers=self._headers) as response:
                status, payload = response.status, await response.read()
                again = response.headers.get("retry-after")
        except TimeoutError as error:
            if isinstance(error, aiohttp.ServerTimeoutError):
                raise _TryAgain(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
            raise PlayerUnavailable(f"the player at {self._url} gave no plays within {self._timeout_s:g} s") from error
        except aiohttp.ClientError as error:
            raise _TryAgain(f"{type(error).__name__}: {last_line(error)}") from error
        try:
            answer = orjson.loads(payload)
        except orjson.JSONDecodeError:
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        said = answer.get("detail") if isinstance(answer, dict) else None
        detail = str(said or payload[:200].decode("utf-8", "replace"))
        if again is not None and again.isdigit():
            raise _TryAgain(f"HTTP {status}: {detail}", float(again))
        if status >= 500:
            raise PlayFailed(detail)
        raise PlayerRefused(f"the player refused: HTTP {status}: {detail}")

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


class _TryAgain(Exception):
    """The server is not there at the moment; it may have said in how many seconds to come back."""

    def __init__(self, message: str, asked_s: float | None = None) -> None:
        super().__init__(message)
        self.asked_s = asked_s

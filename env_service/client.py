"""Clients of an environment service: `AsyncEnvClient` for rollouts, `EnvClient` for scripts.

Calls return the environment's answer or raise one of the errors of `protocol`. They time out and are retried only if
that is safe. A client may be shared by tasks or threads.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from agentevolver.utils.net import http_url
from agentevolver.utils.retry import BackoffPolicy, Retries
from agentevolver.utils.secrets import secret
from env_service import protocol
from env_service.base import InitState, Message, StepResult
from env_service.protocol import (
    Call,
    EnvCrashed,
    EnvRequestError,
    EnvServiceError,
    EnvTimeout,
    EnvUnavailable,
    Repeat,
    RetryPolicy,
)

if TYPE_CHECKING:
    import aiohttp

__all__ = [
    "AsyncEnvClient",
    "EnvClient",
    "EnvCrashed",
    "EnvRequestError",
    "EnvServiceError",
    "EnvTimeout",
    "EnvUnavailable",
    "RetryPolicy",
]

CONNECT_TIMEOUT_S = 10.0
HEALTH_TIMEOUT_S = 5.0
P = ParamSpec("P")
R = TypeVar("R")


class AsyncEnvClient:
    """Client on aiohttp; use it as an async context manager, or call `close` at the end."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        timeout_s: float = 300.0,
        retry: RetryPolicy | None = None,
        max_connections: int = 512,
    ) -> None:
        try:
            self.base_url = http_url(base_url).rstrip("/")
        except ValueError as error:
            raise ValueError(f"base_url {base_url!r} {error}") from error
        self.timeout_s = timeout_s
        self.retry = retry or RetryPolicy()
        self._headers = {"Content-Type": "application/json"}
        token = token or secret(protocol.TOKEN_VARIABLE)
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._held: set[str] = set()
        self._max_connections = max_connections
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

    async def health(self) -> bool:
        """Whether the service can create instances."""
        import aiohttp

        try:
            timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
            async with self._opened().get(f"{self.base_url}/healthz", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def get_env_profile(
        self, env_type: str, split: str = "train", params: dict[str, Any] | None = None
    ) -> list[str]:
        """Return the task ids of a split."""
        return cast(list[str], (await self._send(protocol.profile_call(env_type, split, params)))["data"])

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = None, params: dict[str, Any] | None = None
    ) -> InitState:
        """Open an instance; its id is in `info["instance_id"]`."""
        return cast(InitState, (await self._send(protocol.create_call(env_type, task_id, instance_id, params)))["data"])

    async def step(
        self,
        instance_id: str,
        action: Message | dict[str, Any],
        params: dict[str, Any] | None = None,
        step_index: int | None = None,
    ) -> StepResult:
        """Apply an action. Number the steps from 0, so that a step whose reply is lost can be repeated."""
        return cast(StepResult, (await self._send(protocol.step_call(instance_id, action, params, step_index)))["data"])

    async def evaluate(
        self,
        instance_id: str,
        messages: list[Message] | dict[str, Any] | None = None,
        params: dict[str, Any] | None = None,
    ) -> float:
        """Return the score of the episode in 0..1."""
        return float((await self._send(protocol.ask_call("/evaluate", instance_id, messages, params)))["data"])

    async def get_tools_info(
        self,
        instance_id: str,
        messages: list[Message] | dict[str, Any] | None = None,
        params: dict[str, Any] | None = None,
    ) -> Any:
        """Return the environment's facts about the instance, such as its tools."""
        return (await self._send(protocol.ask_call("/get_info", instance_id, messages, params)))["data"]

    async def release_instance(self, instance_id: str) -> bool:
        """Close the instance; False if the service does not have it."""
        return bool((await self._send(protocol.release_call(instance_id)))["success"])

    async def _send(self, call: Call) -> dict[str, Any]:
        payload, retry = call.encoded(), self.retry
        retries = Retries(BackoffPolicy(retry.tries, retry.budget_s, 2 * retry.base_s, retry.cap_s))
        while True:
            try:
                return await self._try(call, payload)
            except EnvServiceError as error:
                again = error.repeat is Repeat.ALWAYS or (error.repeat is Repeat.IF_SAFE and call.safe)
                delay = retries.failed(error.retry_after_s) if again else None
                if delay is None:
                    raise
            await asyncio.sleep(delay)

    async def _try(self, call: Call, payload: bytes) -> dict[str, Any]:
        import aiohttp

        url = self.base_url + call.route
        try:
            async with self._opened().post(url, data=payload, headers={**self._headers, **call.headers}) as response:
                return self._understand(call, url, response.status, response.headers, await response.read())
        except aiohttp.ClientConnectorError as error:
            raise protocol.refused(call, url, error) from error
        except TimeoutError as error:  # some of aiohttp's timeouts are ClientErrors too (3.14): catch them first
            raise protocol.too_slow(call, url, self.timeout_s) from error
        except aiohttp.ClientError as error:
            raise protocol.broken(call, url, error) from error

    def _understand(
        self, call: Call, url: str, status: int, headers: Mapping[str, str], payload: bytes
    ) -> dict[str, Any]:
        # A restarted service answers "unknown" about the instances it lost. If this client created the instance, that
        # is a crash, not a wrong request.
        created_here = call.instance_id in self._held and call.route != "/release"
        body = protocol.understand(call, url, status, headers, payload, created_here)
        if call.instance_id is not None:
            if call.route == "/create":
                self._held.add(call.instance_id)
            elif call.route == "/release":
                self._held.discard(call.instance_id)
        return body

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=30.0),
                timeout=aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _waiting(
    method: Callable[Concatenate[AsyncEnvClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[EnvClient, P], R]:
    @functools.wraps(method)
    def wait(self: EnvClient, /, *arguments: P.args, **options: P.kwargs) -> R:
        call = asyncio.run_coroutine_threadsafe(method(self._client, *arguments, **options), self._running())
        try:
            return call.result()
        except BaseException:  # a KeyboardInterrupt leaves no call behind
            call.cancel()
            raise

    return wait


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class EnvClient:
    """The same methods without `async`, for code without an event loop. Thread-safe.

    Every call is made by an `AsyncEnvClient`, whose loop runs in a thread from the first call to `close`.
    """

    def __init__(self, base_url: str = "http://127.0.0.1:8080", **options: Any) -> None:
        self._client = AsyncEnvClient(base_url, **options)
        self.base_url, self.timeout_s, self.retry = self._client.base_url, self._client.timeout_s, self._client.retry
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():  # a forked child has no thread, and no right to the parent's connections
            self._lock, self._pid, self._loop, self._client._session = threading.Lock(), os.getpid(), None, None
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="environment client", daemon=True).start()
            return self._loop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self._pid != os.getpid():
            return
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._client.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    health = _waiting(AsyncEnvClient.health)
    get_env_profile = _waiting(AsyncEnvClient.get_env_profile)
    create_instance = _waiting(AsyncEnvClient.create_instance)
    step = _waiting(AsyncEnvClient.step)
    evaluate = _waiting(AsyncEnvClient.evaluate)
    get_tools_info = _waiting(AsyncEnvClient.get_tools_info)
    release_instance = _waiting(AsyncEnvClient.release_instance)

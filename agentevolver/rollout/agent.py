"""The user's agent: its inputs, its result, and how a Python function runs as an agent.

The function is called once a rollout as `play(task, endpoint, world)`. Async functions share one event loop in a
thread; blocking functions have a thread each.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import inspect
import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentevolver.rollout.gateway.server import GatewayEndpoint
from agentevolver.rollout.world import BlockingWorld, HopWorld, LiveWorld
from agentevolver.types import Task
from agentevolver.utils.numbers import score

logger = logging.getLogger(__name__)

# Seconds that a cancelled function has to end. Then it is interrupted, and after as long again abandoned.
GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """Result of an agent: a score in 0..1, or None if a grader decides, and a reason that is stored with the grade."""

    score: float | None = None
    reason: str = ""


class AgentFailed(Exception):
    """The agent raised, ended with an error, or returned no valid result; `result` holds what is known."""

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result or Result()


class Agent(Protocol):
    async def play(self, task: Task, endpoint: GatewayEndpoint, world: LiveWorld | None) -> Result:
        """Play a rollout to its end. Raises AgentFailed. Cancellation ends the whole agent."""
        ...


def result_of(returned: Any) -> Result:
    """Convert an agent's return value. Raises AgentFailed."""
    result = returned if isinstance(returned, Result) else Result(returned)
    if result.score is None:
        return result
    if (found := score(result.score)) is None:
        shown = repr(result.score)[:80]
        raise AgentFailed(f"the agent returned {shown}: return a number in 0..1, a Result, or None")
    return Result(found, result.reason)


class AgentStopped(BaseException):
    """Raised inside a function that continues after its rollout has ended."""


@dataclass(slots=True)
class FunctionAgent:
    function: Callable[..., Any]
    grace_s: float = GRACE_S

    async def play(self, task: Task, endpoint: GatewayEndpoint, world: LiveWorld | None) -> Result:
        here = asyncio.get_running_loop()
        if inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004 - whether an object's call is a coroutine function
        ):
            hop = None if world is None else HopWorld(world, here)
            return result_of(await _agent_loop().run(self.function(task, endpoint, hop), self.grace_s))
        blocking = None if world is None else BlockingWorld(world, here)
        return result_of(await _in_thread(lambda: self.function(task, endpoint, blocking), self.grace_s))


class _AgentLoop:
    """An event loop in a thread, for all async agents of a process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()
        # Agents that still run although their rollouts have ended, and the time of the last interrupt.
        self._over: set[asyncio.Task[Any]] = set()
        self._interrupted = -math.inf

    async def run(self, coroutine: Coroutine[Any, Any, Any], grace_s: float) -> Any:
        """Await a coroutine on that loop. Raises AgentFailed for its errors. Cancellation ends the coroutine."""
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        here = asyncio.get_running_loop()
        task: list[asyncio.Task[Any]] = []
        over = False

        async def guarded() -> None:
            if over:  # cancelled before it started, because another agent blocked the loop
                coroutine.close()
                _tell(here, ended, None, None)
                return
            task.append(asyncio.current_task())  # type: ignore[arg-type]
            try:
                _tell(here, ended, await coroutine, None)
            except BaseException as error:
                _tell(here, ended, None, error)
                if isinstance(error, AgentStopped):
                    # Other ended agents may be scheduled already, and each would block the loop next.
                    for one in list(self._over):
                        one.cancel()
                if isinstance(error, asyncio.CancelledError):
                    raise

        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(guarded()))
        try:
            return await _outcome(ended)
        except asyncio.CancelledError:
            over = True
            self._over.update(task)
            self._loop.call_soon_threadsafe(lambda: [one.cancel() for one in task])
            if not await _within(ended, grace_s):
                # If the loop does not answer, some agent blocks it and is interrupted. If it answers, this coroutine
                # swallowed its cancellation and is cancelled again.
                answered: asyncio.Future[Any] = here.create_future()
                self._loop.call_soon_threadsafe(lambda: _tell(here, answered, None, None))
                # Several callers may wait for the same blocking agent. Only one interrupts: a second interrupt would
                # hit the next agent.
                if not await _within(answered, grace_s) and time.monotonic() - self._interrupted > grace_s:
                    self._interrupted = time.monotonic()
                    _interrupt(self._thread)
                self._loop.call_soon_threadsafe(lambda: [one.cancel() for one in task])
                if not await _within(ended, grace_s):
                    logger.error(
                        "an async agent still runs after its cancellation: it must not catch CancelledError, nor block"
                    )
            raise
        finally:
            self._over.difference_update(task)


@functools.cache
def _agent_loop() -> _AgentLoop:
    return _AgentLoop()


async def _in_thread(call: Callable[[], Any], grace_s: float) -> Any:
    """Run a function in a new thread. Raises AgentFailed for its errors. Cancellation interrupts the thread."""
    here = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = here.create_future()

    def run() -> None:
        try:
            _tell(here, ended, call(), None)
        except BaseException as error:
            _tell(here, ended, None, error)

    thread = threading.Thread(target=run, name="agent", daemon=True)
    thread.start()
    try:
        return await _outcome(ended)
    except asyncio.CancelledError:
        _interrupt(thread)
        if not await _within(ended, grace_s):
            logger.error("an agent's thread still runs after its interrupt: it waits for something without a timeout")
        raise


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    # Runs on the loop. The future may be done: its waiter was cancelled.
    def tell() -> None:
        if not ended.done():
            ended.set_result((value, error))

    if not loop.is_closed():
        loop.call_soon_threadsafe(tell)


async def _outcome(ended: asyncio.Future[Any]) -> Any:
    value, error = await asyncio.shield(ended)
    if error is not None:
        raise AgentFailed(described(error)) from error
    return value


async def _within(ended: asyncio.Future[Any], seconds: float) -> bool:
    done, _ = await asyncio.wait({ended}, timeout=seconds)
    return bool(done)


def _interrupt(thread: threading.Thread) -> None:
    if thread.is_alive() and thread.ident is not None:
        # CPython raises the exception at the thread's next bytecode; a blocking C call continues until it returns.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(AgentStopped))


def described(error: BaseException) -> str:
    """Return an error and its place in one line, the innermost line of the user's own files if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}"

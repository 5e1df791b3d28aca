"""The user's agent: what it is called with, what it may return, and how a function of this Python is run.

A function is called once a rollout, as `play(task, endpoint, world)`, outside of the event loop that answers its model
calls: async functions share one loop, others have a thread each. A blocking function delays no rollout but its own (an
async one: the other async ones).
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

logger = logging.getLogger(__name__)

# Seconds after its cancellation in which a function has to end before it is interrupted, and after that abandoned.
GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """Result of an agent: `score` in 0..1, None if somebody else grades; `reason` is kept beside the grade."""

    score: float | None = None
    reason: str = ""


class AgentFailed(Exception):
    """The agent raised, ended with an error, or returned no result; `result` is what can be said of the rollout
    nevertheless."""

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result or Result()


class Agent(Protocol):
    """Plays rollouts through the gateway."""

    async def play(self, task: Task, endpoint: GatewayEndpoint, world: LiveWorld | None) -> Result:
        """Play a rollout until the agent is done. Raises AgentFailed; cancelled, it leaves nothing of the agent
        running."""
        ...


def result_of(returned: Any) -> Result:
    """Return an agent's return value as a result. Raises AgentFailed."""
    result = returned if isinstance(returned, Result) else Result(returned)
    score = result.score
    if score is None:
        return result
    if not isinstance(score, int | float) or not math.isfinite(score) or not 0.0 <= score <= 1.0:
        shown = repr(score)[:80]
        raise AgentFailed(f"the agent returned {shown}: return a number in 0..1, a Result, or None")
    return Result(float(score), result.reason)


class AgentStopped(BaseException):
    """Raised inside of a function that goes on after its rollout has ended."""


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
    """An event loop in a thread, for the async functions of a process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()
        # The agents that go on although their rollouts have ended, and when one was last interrupted.
        self._over: set[asyncio.Task[Any]] = set()
        self._interrupted = -math.inf

    async def run(self, coroutine: Coroutine[Any, Any, Any], grace_s: float) -> Any:
        """Await a coroutine there. Raises AgentFailed for its errors; ends it if this is cancelled."""
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        here = asyncio.get_running_loop()
        task: list[asyncio.Task[Any]] = []
        over = False

        async def guarded() -> None:
            if over:  # another agent has held the loop up since before this one's turn
                coroutine.close()
                _tell(here, ended, None, None)
                return
            task.append(asyncio.current_task())  # type: ignore[arg-type]
            try:
                _tell(here, ended, await coroutine, None)
            except BaseException as error:
                _tell(here, ended, None, error)
                if isinstance(error, AgentStopped):
                    # Others that are over may be woken already: each would hold the loop up next.
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
                # Whatever holds the loop up is interrupted; a coroutine that goes on although it was cancelled is not
                # holding it up, and is cancelled again.
                answered: asyncio.Future[Any] = here.create_future()
                self._loop.call_soon_threadsafe(lambda: _tell(here, answered, None, None))
                # Of those that wait for the same agent one interrupts it: a second time would strike what comes next.
                if not await _within(answered, grace_s) and time.monotonic() - self._interrupted > grace_s:
                    self._interrupted = time.monotonic()
                    _interrupt(self._thread)
                self._loop.call_soon_threadsafe(lambda: [one.cancel() for one in task])
                if not await _within(ended, grace_s):
                    logger.error(
                        "an async agent goes on after its cancellation: it must not catch CancelledError, nor block"
                    )
            raise
        finally:
            self._over.difference_update(task)


@functools.cache
def _agent_loop() -> _AgentLoop:
    return _AgentLoop()


async def _in_thread(call: Callable[[], Any], grace_s: float) -> Any:
    """Run a function in a new thread. Raises AgentFailed for its errors; if this is cancelled, interrupts it at its
    next line."""
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
            logger.error("the thread of an agent goes on: it waits for something without a timeout of its own")
        raise


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Set a function's result from another thread; its waiter may be gone."""

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
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(AgentStopped))


def described(error: BaseException) -> str:
    """Return an error and its place in one line, the innermost line of the user's own files if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}"

"""Service supervision: start, wait until healthy, watch, and restart after a death a bounded number of times.

Every child has its own session and carries the run id, so it is ended with everything it started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from agentevolver.launcher.stack import LEFT_MINUTES, JobSpec, ServiceSpec
from agentevolver.utils.errors import LaunchError
from agentevolver.utils.health import all_unhealthy
from agentevolver.utils.processes import (
    KILL_WAIT_S,
    RUN_ID,
    SERVICE,
    ProcessId,
    die_with_parent,
    end_carriers,
    identify,
)

logger = logging.getLogger(__name__)


LEFTOVER_GRACE_S = 2.0
TAIL_BYTES = 16_384


class Child:
    """Child process, with all descendants that carry the service's name."""

    def __init__(self, spec: JobSpec, run_id: str, process: asyncio.subprocess.Process, identity: ProcessId) -> None:
        self.spec = spec
        self.identity = identity
        self.started = time.monotonic()
        self._run_id = run_id
        self._process = process

    @classmethod
    async def start(cls, spec: JobSpec, run_id: str, out: int, err: int) -> Child:
        """Start the child with its output in these file descriptors.

        Raises:
            LaunchError: the program or its folder is missing.
        """
        # SPT_NOENV: Ray and vLLM rename their processes, and would overwrite the environment that holds the run's id.
        inherited = {name: value for name, value in os.environ.items() if name not in spec.withheld}
        environment = {**inherited, "SPT_NOENV": "1", **spec.env, RUN_ID: run_id, SERVICE: spec.name}
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                cwd=spec.cwd,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                # The kernel ends what the launcher started itself; the guard ends the rest.
                preexec_fn=partial(die_with_parent, os.getpid(), spec.launcher_lost),
            )
        except OSError as error:
            raise LaunchError(f"{spec.name}: cannot start `{spec.command}` in {spec.cwd}: {error.strerror}") from error
        identity = identify(process.pid) or ProcessId(process.pid, -1)
        return cls(spec, run_id, process, identity)

    async def wait(self) -> int:
        """Wait for the end. Return the exit code, negative for a signal."""
        return await self._process.wait()

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None if the child runs."""
        return self._process.returncode

    async def stop(self, hurry: asyncio.Event) -> set[ProcessId]:
        """End the child and its descendants. Return the processes that survive SIGKILL.

        Args:
            hurry: once set, the grace period ends.
        """
        if self.exit_code is None:
            self._signal_group(signal.SIGTERM)
            if not await self._ends_within(self.spec.grace_s, hurry):
                logger.warning("%s did not end within %.0f s of SIGTERM; killing it", self.spec.name, self.spec.grace_s)
        if self.exit_code is None:
            self._signal_group(signal.SIGKILL)
            await self._ends_within(KILL_WAIT_S)
        return await self.end_leftovers(0.0 if hurry.is_set() else LEFTOVER_GRACE_S)

    async def end_leftovers(self, grace_s: float = LEFTOVER_GRACE_S) -> set[ProcessId]:
        """End the descendants that the child left behind. Return those that survive SIGKILL."""
        return await asyncio.to_thread(end_carriers, self._run_id, grace_s, self.spec.name)

    async def _ends_within(self, seconds: float, hurry: asyncio.Event | None = None) -> bool:
        """Wait for the end. Return False after the timeout; `hurry` ends the wait early."""
        tasks: set[asyncio.Task[object]] = {asyncio.create_task(self._process.wait())}
        if hurry is not None:
            tasks.add(asyncio.create_task(hurry.wait()))
        done, pending = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return bool(done)

    def _signal_group(self, number: signal.Signals) -> None:
        # The child leads its group, whose number is not used again before the child is reaped.
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def describe_exit(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def tail(log: Path, offset: int, lines: int = 15) -> list[str]:
    """Return the last lines written to a log since `offset`."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # A log that was rotated meanwhile is shorter than `offset`.
            file.seek(max(offset if offset <= size else 0, size - TAIL_BYTES))
            content = file.read()
    except OSError:
        return []
    return content.decode("utf-8", errors="replace").splitlines()[-lines:]


POLL_S = 0.25
PROGRESS_EVERY_S = 15.0


def leave_behind(spec: ServiceSpec) -> None:
    """Start the service's `afterwards` command outside of the run. A failure is logged."""
    out = {*spec.withheld, RUN_ID, SERVICE}
    environment = {name: value for name, value in os.environ.items() if name not in out}
    try:
        with spec.log.open("ab") as log:
            process = subprocess.Popen(
                spec.afterwards, cwd=spec.cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        logger.warning("%s cannot be started for the time after the run: %s", spec.name, error)
        return
    logger.info(
        "%s keeps running until %d minutes pass without a request (pid %d)", spec.title, LEFT_MINUTES, process.pid
    )


State = Literal["new", "starting", "up", "died", "stopped"]


class ServiceDied(LaunchError):
    """Service that ended, or did not come up in time."""


class SupervisedService:
    """Supervised service of a run. `on_start` is called with each of its processes."""

    def __init__(self, spec: ServiceSpec, run_id: str, on_start: Callable[[str, ProcessId], None]) -> None:
        self.spec = spec
        self.state: State = "new"
        self._run_id = run_id
        self._on_start = on_start
        self._child: Child | None = None
        self._offset = 0
        self._well_since = 0.0

    async def bring_up(self) -> None:
        """Start the service for the first time, with up to `first_tries` attempts.

        Raises:
            ServiceDied: the last attempt failed.
        """
        for left in reversed(range(self.spec.first_tries)):
            try:
                return await self.start()
            except ServiceDied:
                if not left:
                    raise
                logger.warning("starting %s once more", self.spec.name)

    async def start(self) -> None:
        """Start the service and wait until it is up.

        Raises:
            ServiceDied: the service ended, or is not up after `ready_timeout_s`. The end of its log has been
                logged.
        """
        self.state = "starting"
        self._child = await self._spawn()
        ended = asyncio.create_task(self._child.wait())
        answering = asyncio.create_task(self._answering())
        try:
            await asyncio.wait(
                {ended, answering}, timeout=self.spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ended.cancel()
            answering.cancel()
        if self._child.exit_code is not None:
            raise await self._died(f"{self.spec.name} {describe_exit(self._child.exit_code)} before it was up")
        if not answering.done() or answering.cancelled():
            reason = await self._unhealthy()
            raise await self._died(f"{self.spec.name} is not up after {self.spec.ready_timeout_s:g} s ({reason})")
        answering.result()
        self.state = "up"
        self._well_since = time.monotonic()

    async def watch(self) -> NoReturn:
        """Restart the service whenever it dies. A service that is not `needed` is given up after its restarts.

        Raises:
            ServiceDied: the service died and has no restart left.
        """
        attempt = 0
        while True:
            code = await self._running().wait()
            if time.monotonic() - self._well_since > self.spec.steady_s:
                attempt = 0
            error = await self._died(f"{self.spec.name} {describe_exit(code)} during the run")
            while self.state != "up":
                if attempt >= self.spec.restarts and not self.spec.needed:
                    logger.warning("the run goes on without %s", self.spec.name)
                    # A watch that returned would end the run, so it waits forever.
                    await asyncio.get_running_loop().create_future()
                if attempt >= self.spec.restarts:
                    tried = f" and was started again {attempt} times" if attempt else ""
                    raise ServiceDied(f"{error}{tried}; the run cannot go on") from error
                delay = self.spec.delay(attempt)
                attempt += 1
                logger.warning(
                    "starting %s again in %g s (%d of %d)", self.spec.name, delay, attempt, self.spec.restarts
                )
                await asyncio.sleep(delay)
                try:
                    await self.start()
                except ServiceDied as again:
                    error = again
            logger.warning("%s is up again", self.spec.name)

    async def stop(self, hurry: asyncio.Event) -> set[ProcessId]:
        """Stop the service. Return the processes that survive SIGKILL."""
        self.state = "stopped"
        return set() if self._child is None else await self._child.stop(hurry)

    async def _spawn(self) -> Child:
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log.open("ab") as log:
            self._offset = log.seek(0, os.SEEK_END)
            child = await Child.start(self.spec, self._run_id, log.fileno(), log.fileno())
        self._on_start(self.spec.name, child.identity)
        return child

    async def _answering(self) -> None:
        began = reported = time.monotonic()
        while (reason := await self._unhealthy()) is not None:
            if time.monotonic() - reported >= PROGRESS_EVERY_S:
                reported = time.monotonic()
                logger.info(
                    "  waiting for %s since %.0f s (%s; log: %s)",
                    self.spec.name,
                    reported - began,
                    reason,
                    self.spec.log,
                )
            await asyncio.sleep(POLL_S)

    async def _unhealthy(self) -> str | None:
        return await all_unhealthy(self.spec.health_urls, launch_id=self._run_id if self.spec.says_who else None)

    async def _died(self, message: str) -> ServiceDied:
        """Log the end of the log, end the service's remaining processes, and return the error."""
        self.state = "died"
        lines = tail(self.spec.log, self._offset)
        logger.error("%s; the end of %s:", message, self.spec.log)
        for line in lines or ["(nothing was written)"]:
            logger.error("  | %s", line)
        child = self._running()
        if child.exit_code is None:
            await child.stop(asyncio.Event())
        else:
            await child.end_leftovers()
        advice = f"; {self.spec.advice}" if self.spec.advice else ""
        return ServiceDied(f"{message} (log: {self.spec.log}){advice}")

    def _running(self) -> Child:
        assert self._child is not None, f"{self.spec.name} was not started"
        return self._child

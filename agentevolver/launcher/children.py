"""One child process: started in a session of its own, marked as the run's, ended with everything it started.

A child is waited for by the event loop, so its end is known at once and never leaves a zombie. `stop` returns only when
the child and all marked processes that came from it are gone, or nothing more can be done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from functools import partial
from pathlib import Path

from agentevolver.errors import LaunchError
from agentevolver.launcher.spec import JobSpec
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
    """A running child; made by `start`."""

    def __init__(self, spec: JobSpec, run_id: str, process: asyncio.subprocess.Process, identity: ProcessId) -> None:
        self.spec = spec
        self.identity = identity
        self.started = time.monotonic()
        self._run_id = run_id
        self._process = process

    @classmethod
    async def start(cls, spec: JobSpec, run_id: str, out: int, err: int) -> Child:
        """Start it, with stdout and stderr into these file descriptors.

        Raises:
            LaunchError: the program or its folder is not there.
        """
        # SPT_NOENV: Ray and vLLM rename their processes, and would overwrite the environment that they are recognised
        # by.
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
                # The first of two lines (the second is the guard): the kernel's, for what the launcher starts itself.
                preexec_fn=partial(die_with_parent, os.getpid(), spec.launcher_lost),
            )
        except OSError as error:
            raise LaunchError(f"{spec.name}: cannot start `{spec.command}` in {spec.cwd}: {error.strerror}") from error
        identity = identify(process.pid) or ProcessId(process.pid, -1)
        return cls(spec, run_id, process, identity)

    async def wait(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        return await self._process.wait()

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.returncode

    async def stop(self, hurry: asyncio.Event) -> set[ProcessId]:
        """End it and what it started; `hurry` cuts the grace short. Returns what outlives SIGKILL."""
        if self.exit_code is None:
            self._signal_group(signal.SIGTERM)
            if not await self._ends_within(self.spec.grace_s, hurry):
                logger.warning("%s did not end within %.0f s of SIGTERM; killing it", self.spec.name, self.spec.grace_s)
        if self.exit_code is None:
            self._signal_group(signal.SIGKILL)
            await self._ends_within(KILL_WAIT_S)
        return await self.end_leftovers(0.0 if hurry.is_set() else LEFTOVER_GRACE_S)

    async def end_leftovers(self, grace_s: float = LEFTOVER_GRACE_S) -> set[ProcessId]:
        """End what the child started and left behind; returns what outlives SIGKILL."""
        return await asyncio.to_thread(end_carriers, self._run_id, grace_s, self.spec.name)

    async def _ends_within(self, seconds: float, hurry: asyncio.Event | None = None) -> bool:
        """Wait for its end; False when the time is over. `hurry` ends the waiting early, which is no reason to
        complain."""
        tasks: set[asyncio.Task[object]] = {asyncio.create_task(self._process.wait())}
        if hurry is not None:
            tasks.add(asyncio.create_task(hurry.wait()))
        done, pending = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return bool(done)

    def _signal_group(self, number: signal.Signals) -> None:
        # The child leads its group, and as long as it is not reaped (exit_code is None) its number cannot belong to
        # anybody else.
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def describe_exit(code: int) -> str:
    """Say how a process ended."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def tail(log: Path, offset: int, lines: int = 15) -> list[str]:
    """Return the last lines that were written to a log since `offset`."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # A log that was emptied since is shorter than it was.
            file.seek(max(offset if offset <= size else 0, size - TAIL_BYTES))
            content = file.read()
    except OSError:
        return []
    return content.decode("utf-8", errors="replace").splitlines()[-lines:]

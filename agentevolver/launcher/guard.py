"""Guard process: notes the run's shared memory, and ends the run when its launcher was killed.

There is one beside each launcher. It holds the reading end of a pipe of which the launcher alone has the other end, so
that the kernel tells it of any death of the launcher's within milliseconds. It has a session of its own and is no
process of the run, so that nothing that ends the run ends it. A guard that dies is started again. Should both die at
once, the kernel ends what the launcher itself started (`die_with_parent`), and the next launch, or `--kill`, what is
left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from agentevolver.errors import LaunchError
from agentevolver.launcher.records import RunRecord, RunRegistry
from agentevolver.utils.processes import SegmentWatch, wait_gone

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
AGAIN_AFTER_S = 1.0
LONGEST_PAUSE_S = STEADY_S = 60.0
END_WAIT_S = 10.0
GONE_WAIT_S = 5.0
OVER = b"over"
PASSED_ON = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME")


def environment() -> dict[str, str]:
    """Return a guard's variables: what Python needs to start, no keys, and not the mark of the run's processes."""
    # This copy of the package first, whatever folder the launcher was started in.
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"PYTHONPATH": path}


def pause_after(last: float, lived_s: float) -> float:
    """Return the pause in seconds before a guard that lived so long is started again; `last` is the previous pause."""
    return AGAIN_AFTER_S if lived_s >= STEADY_S else min(max(AGAIN_AFTER_S, 2 * last), LONGEST_PAUSE_S)


class Guard:
    """The launcher's side: keeps a guard running from `start` to `close`."""

    def __init__(self, registry: RunRegistry, run_id: str) -> None:
        self._argv = (sys.executable, "-m", "agentevolver.launcher.guard", str(registry.folder.resolve()), run_id)
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and again whenever it dies."""
        await self._spawn()
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Have it end without doing anything: the run is over. A second call does nothing."""
        keeping, self._keeping = self._keeping, None
        process, self._process = self._process, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        if process is None:
            return
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(process.communicate(OVER), END_WAIT_S)
        if process.returncode is None:
            process.kill()
            await process.wait()

    async def _spawn(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment(), start_new_session=True
            )
        except OSError as error:
            raise LaunchError(f"cannot start the run's guard: {error.strerror}") from error

    async def _keep(self) -> None:
        pause = 0.0
        while True:
            assert self._process is not None
            began = time.monotonic()
            await self._process.wait()
            pause = pause_after(pause, time.monotonic() - began)
            logger.warning(
                "the guard, which ends the run should this launcher be killed, was ended; starting it again in %g s",
                pause,
            )
            await asyncio.sleep(pause)
            try:
                await self._spawn()
            except LaunchError as error:
                logger.warning("%s; trying again", error)


def guard(registry: RunRegistry, run_id: str) -> int:
    """Be the guard of a run; returns the exit code."""
    watch = SegmentWatch(run_id, registry.segments_path(run_id))
    pipe = sys.stdin.fileno()
    while not select.select([pipe], [], [], LOOK_EVERY_S)[0]:
        _look(watch)
    if os.read(pipe, len(OVER)):
        return 0
    _look(watch)
    record = registry.of_run(run_id)
    # The pipe closes early in a process's end. A launcher that has lost it and lives starts another guard.
    if isinstance(record, RunRecord) and wait_gone({record.launcher}, GONE_WAIT_S):
        return 1
    if record is None:
        registry.forget(run_id)
    else:
        say(f"the launcher of run {run_id} was killed: {registry.reap(record)}")
    return 0


def _look(watch: SegmentWatch) -> None:
    # A full disk, or a folder that somebody removed: the guard is needed all the more.
    with contextlib.suppress(OSError):
        watch.look()


def say(text: str) -> None:
    """Write a line where the launcher wrote, if anybody still reads there."""
    with contextlib.suppress(OSError, ValueError):
        print(f"[launcher] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(guard(RunRegistry(Path(sys.argv[1])), sys.argv[2]))
    except LaunchError as error:
        say(f"error: {error}")
        sys.exit(1)

"""Guard process: notes the run's shared memory, and reaps the run if its launcher was killed.

Its stdin is a pipe whose other end only the launcher holds: end of file means that the launcher is gone. If the guard
was killed too, the kernel ends the launcher's children (`die_with_parent`); the next launch or `--kill` ends the rest.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from pathlib import Path

from agentevolver.launcher.records import RunRegistry
from agentevolver.utils.errors import LaunchError
from agentevolver.utils.processes import SegmentWatch, wait_gone

LOOK_EVERY_S = 0.25
GONE_WAIT_S = 5.0


def start_guard(registry: RunRegistry, run_id: str) -> subprocess.Popen[bytes]:
    """Start the guard of a run. Raises LaunchError."""
    argv = (sys.executable, "-m", "agentevolver.launcher.guard", str(registry.folder.resolve()), run_id)
    try:
        # In the checkout's folder, since `-m` imports from there first.
        # A session of its own, and no run id in its environment: nothing that ends the run ends the guard.
        return subprocess.Popen(
            argv, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise LaunchError(f"cannot start the run's guard: {error.strerror}") from error


def end_guard(guard: subprocess.Popen[bytes]) -> None:
    """End the guard before it reaps anything. A second call does nothing."""
    with guard:
        guard.kill()


def main(registry: RunRegistry, run_id: str) -> None:
    watch, ended = SegmentWatch(run_id, registry.segments_path(run_id)), False
    while not ended:
        ended = bool(select.select([sys.stdin], [], [], LOOK_EVERY_S)[0])
        with contextlib.suppress(OSError):  # a full disk does not end the guard
            watch.look()
    record = registry.of_run(run_id)
    if record is None:
        registry.forget(run_id)
        return
    # The pipe closes early while a process ends, so the launcher may need a moment to be gone.
    if not record.damaged and wait_gone({record.launcher}, GONE_WAIT_S):
        return
    try:
        text = f"the launcher of run {run_id} was killed: {registry.reap(record)}"
    except LaunchError as error:
        text = f"error: {error}"
    with contextlib.suppress(OSError):  # the launcher's terminal may be gone
        print(f"[launcher] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(RunRegistry(Path(sys.argv[1])), sys.argv[2])

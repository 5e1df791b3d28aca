"""A launcher's run that ends by a deadline, whatever happens: asked to stop, told to hurry, then ended with everything
it started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from agentevolver.launcher.records import RunRegistry

# How long before the deadline the run is asked to stop, is told to hurry, and is killed.
STOP_S, HURRY_S, KILL_S = 30.0, 15.0, 8.0
POLL_S = 0.1


@dataclass
class Ended:
    """How a run ended; `timeline` has what its status said, with the seconds since the launch."""

    returncode: int | None
    seconds: float
    timeline: list[tuple[float, str]] = field(default_factory=list)


def run_within(command: list[str], root: Path, experiment: Path, output: Path, limit_s: float) -> Ended:
    """Run the launcher of the checkout `root` for `limit_s` seconds at most, its output into a file, what it does told
    to stderr.

    It is in a session of its own, so that Ctrl-C comes to it from here alone.
    """
    began = time.monotonic()
    ended = Ended(None, 0.0)
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=root, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    signals = [limit_s - STOP_S, limit_s - HURRY_S]
    try:
        while process.poll() is None and (passed := time.monotonic() - began) < limit_s - KILL_S:
            phase = _phase(experiment / "status.json")
            if phase is not None and (not ended.timeline or ended.timeline[-1][1] != phase):
                ended.timeline.append((round(passed, 1), phase))
                print(f"+{passed:.0f} s {phase}", file=sys.stderr, flush=True)
            if signals and passed >= signals[0]:
                signals.pop(0)
                process.send_signal(signal.SIGINT)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        registry = RunRegistry(root / ".agentevolver" / "run")
        for record in registry.records():
            if record.is_called(str(experiment.resolve())):  # only if the launcher could not stop everything itself
                registry.reap(record)
    ended.returncode, ended.seconds = process.returncode, round(time.monotonic() - began, 1)
    return ended


def _phase(status: Path) -> str | None:
    try:
        content = json.loads(status.read_text(encoding="utf-8"))
        step = f" {content['step']}" if "step" in content else ""
        return f"{content['phase']}{step}"
    except (OSError, ValueError, KeyError):
        return None

"""The main job's output: every byte in the file, whatever becomes of the console."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentevolver.launcher.run import Tee


def test_a_console_that_is_closed_does_not_stop_the_job(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Tee(tmp_path / "main.log", writer, writer) as tee:
        subprocess.run([sys.executable, "-c", "print('x' * 500_000)"], stdout=tee.out, check=True)
    os.close(writer)
    assert (tmp_path / "main.log").stat().st_size == 500_001


@pytest.mark.thorough
def test_a_console_that_blocks_does_not_block_the_launcher(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    began = time.monotonic()
    with Tee(tmp_path / "main.log", writer, writer) as tee:
        job = threading.Thread(target=os.write, args=(tee.out, b"x" * 60_000), daemon=True)
        job.start()
        job.join(5)
        os.write(tee.out, b"y" * 10_000)  # more than the paused console's pipe takes
    assert time.monotonic() - began < 10
    # The console goes on, and the copying comes to its end; only then may its descriptor be closed.
    shown = 0
    while shown < 70_000:
        shown += len(os.read(reader, 70_000))
    tee._thread.join(5)
    assert not tee._thread.is_alive()
    os.close(reader)
    os.close(writer)


def test_a_full_disk_does_not_stop_the_job(tmp_path: Path) -> None:
    (tmp_path / "main.log").symlink_to("/dev/full")
    with (
        (tmp_path / "console").open("wb") as console,
        Tee(tmp_path / "main.log", console.fileno(), console.fileno()) as tee,
    ):
        subprocess.run([sys.executable, "-c", "print('x' * 500_000)"], stdout=tee.out, check=True, timeout=30)
    assert (tmp_path / "console").stat().st_size == 500_001

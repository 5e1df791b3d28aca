"""The hostile server in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_name("hostile_server.py")


@contextmanager
def served(*options: str) -> Iterator[str]:
    """Run the server with options of its command line; yields its address, without `/v1`."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *options], cwd=SCRIPT.parents[2], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), "the hostile server did not start"
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=30)

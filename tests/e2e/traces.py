"""What a run leaves outside of its experiment's folder, told from what other programs on the machine leave by the run's
own marks.

Temporary files: the run has a TMPDIR of its own, which is empty before. Shared memory, and sockets at places that
libraries name themselves: what its processes were seen to map or to be bound to while they lived, and what is still
there.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentevolver.utils.processes import attached, carriers

LOOK_EVERY_S = 0.5
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Traces:
    """Watches a run from its launch on; `folder` is to be its TMPDIR. The path is short, as those of sockets in it must
    be.

    Args:
        run_id: returns the run's id once it has one.
        folder: the experiment's root, where everything may stay.
    """

    def __init__(self, run_id: Callable[[], str | None], root: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
        self._run_id, self._root = run_id, root
        self._seen: set[Path] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """Note what the run's processes hold now."""
        if (run_id := self._run_id()) is not None:
            self._seen |= attached(run_id) | {path for path in bound_sockets(run_id) if self._root not in path.parents}

    def left(self) -> set[str]:
        """Return what is there of what the run made."""
        held = {path for path in self._seen if path.exists() and self.folder not in path.parents}
        return {str(path) for path in (*held, *self.folder.iterdir())}

    def close(self) -> None:
        """Stop watching, and remove the run's temporary folder."""
        self._over.set()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def bound_sockets(run_id: str) -> set[Path]:
    """Return the places in the file system at which a run's processes have bound sockets."""
    table = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    places = {fields[6]: fields[7] for fields in table if len(fields) == 8 and fields[7].startswith("/")}
    found = set()
    for process in carriers(run_id):
        with suppress(OSError):  # ended meanwhile
            for name in os.listdir(f"/proc/{process.pid}/fd"):
                with suppress(OSError):
                    held = _SOCKET.fullmatch(os.readlink(f"/proc/{process.pid}/fd/{name}"))
                    if held is not None and held[1] in places:
                        found.add(Path(places[held[1]]))
    return found

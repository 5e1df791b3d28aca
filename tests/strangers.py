"""What others may read of a run: every file that another user can open, and what processes carry in their
environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from agentevolver.utils.processes import carriers

NOBODY = 65_534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

# Standard library alone: the interpreter has imported what it needs before it becomes somebody else.
_LOOK = """
import json, os, sys
user, since, roots, texts = json.loads(sys.argv[1])
texts = [text.encode() for text in texts]
if user is not None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
found = []
for root in roots:
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and os.stat(path).st_mtime >= since:
                    with open(path, "rb") as file:
                        content = file.read()
                    if any(text in content for text in texts):
                        found.append(path)
            except OSError:
                pass
print(json.dumps(found))
"""


def readable(roots: Iterable[Path], texts: Iterable[str], user: int | None = None, since: float = 0.0) -> set[Path]:
    """The files below some folders, written since a moment, in which a user (None: this one) can read one of the
    texts."""
    asked = json.dumps([user, since, [str(root) for root in roots], list(texts)])
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LOOK, asked], capture_output=True, text=True, check=True, timeout=120
    )
    return {Path(path) for path in json.loads(done.stdout)}


def carrying(run_id: str, texts: Iterable[str]) -> dict[str, set[str]]:
    """The run's processes whose environment, as the kernel shows it, holds one of the texts: command line and
    variables."""
    wanted, found = [text.encode() for text in texts], {}
    for process in carriers(run_id):
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        names = {entry.partition(b"=")[0].decode() for entry in environment if any(text in entry for text in wanted)}
        if names:
            found[b" ".join(process.arguments()).decode(errors="replace").strip()] = names
    return found

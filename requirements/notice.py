"""Writes NOTICE, the licences of everything in the locks, as their own metadata state them: `python
requirements/notice.py`.

Run it after changing a pin. It asks pip for the metadata of every pin (`pip install --dry-run --report`, pip 24 or
newer: older ones download the packages for it) and installs nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from hashes import LOCKS, ROOT

NOTICE = ROOT / "NOTICE"
HEAD = """\
AgentEvolver is licensed as LICENSE says. It contains no other program; install.sh installs the distributions below, \
which are their
authors' and under their own licences. The licences are quoted from the distributions' metadata, which is not always \
exact: what counts is
the text that each of them carries in its *.dist-info folder. Written by requirements/notice.py from the locks, which \
stand in brackets.
"""
UNNAMED = "none named in its metadata"


def licence(metadata: Mapping[str, Any]) -> str:
    """Return the licence that core metadata state: the expression, else the classifiers, else the first line of the
    free text."""
    if expression := metadata.get("license_expression"):
        return str(expression)
    classified = [
        item.rpartition(" :: ")[2] for item in metadata.get("classifier", ()) if item.startswith("License :: ")
    ]
    classified = [item for item in classified if item not in ("OSI Approved", "DFSG approved")]
    lines = [line.strip() for line in str(metadata.get("license") or "").splitlines() if line.strip()]
    free = lines[0] if lines and lines[0] not in ("UNKNOWN", "None") and len(lines[0]) <= 100 else ""
    return ", ".join(dict.fromkeys(classified)) or free or UNNAMED


def report(lock: Path) -> list[dict[str, Any]]:
    """Return the metadata of every pin of a lock, from the index that pip is set up for.

    Raises:
        subprocess.CalledProcessError: pip cannot find a pin, or its file is another one; it has said which.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
            "--require-hashes",
        ]
        subprocess.run([*command, "--no-build-isolation", "--report", str(path), "-r", str(lock)], check=True)
        return [item["metadata"] for item in json.loads(path.read_text())["install"]]


def label(lock: Path) -> str:
    """Return what a lock is called in NOTICE: cpu, cuda, dev, appworld, scienceworld, tau2, textarena, textworld."""
    return lock.stem if lock.stem != "requirements" else lock.parent.name


def written(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the text of NOTICE; `found` holds the metadata of each lock's distributions."""
    lines: dict[tuple[str, str], list[str]] = {}
    stated: dict[tuple[str, str], str] = {}
    for lock, distributions in found.items():
        for metadata in distributions:
            key = str(metadata["name"]), str(metadata["version"])
            lines.setdefault(key, []).append(lock)
            stated[key] = licence(metadata)
    rows = [f"{name} {version} [{', '.join(lines[name, version])}]: {stated[name, version]}" for name, version in lines]
    return "\n".join([HEAD, *sorted(rows, key=str.lower), ""])


if __name__ == "__main__":
    text = written({label(lock): report(lock) for lock in LOCKS})
    NOTICE.write_text(text)
    print(f"{NOTICE}: {text.count(']: ')} distributions, {text.count(UNNAMED)} whose metadata name no licence")

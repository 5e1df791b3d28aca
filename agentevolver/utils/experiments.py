"""Experiments on the disk and their launches."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentevolver.utils.errors import UsageError

ROOT = Path("experiments")
SHOWN = 8


def find_experiment(name: str, root: Path = ROOT, *, asked: str | None = None) -> Path:
    """Return the folder of a started experiment.

    Args:
        name: its path, project/experiment, or experiment.
        asked: the name in error messages; None: `name`.

    Raises:
        UsageError: no experiment has this name, or more than one.
    """
    asked = asked or name
    found = [
        path
        for path in dict.fromkeys((Path(name), root / name, *sorted(root.glob(f"*/{glob.escape(name)}"))))
        if (path / "launches").is_dir()
    ]
    if not found:
        raise UsageError(f"{asked}: no experiment of that name was started here; {known_experiments(root)}")
    if len(found) > 1:
        raise UsageError(f"{asked} may be {' or '.join(map(str, found))}: give the folder")
    return found[0]


def known_experiments(root: Path = ROOT) -> str:
    names = sorted({f"{path.parent.parent.name}/{path.parent.name}" for path in root.glob("*/*/launches")})
    return f"there are {', '.join(names[:SHOWN])}" if names else f"{root} holds none"


def launches(experiment: Path) -> Iterator[dict[str, Any]]:
    """Yield launch records, newest first; records that are unreadable or lack arguments are skipped."""
    for path in sorted((experiment / "launches").glob("*.json"), reverse=True):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and isinstance(record.get("argv"), list):
            yield {**record, "argv": [str(item) for item in record["argv"]]}

"""Experiments on the disk: found by folder, by project/experiment or by experiment, as every verb lets a person name
them."""

from __future__ import annotations

from pathlib import Path

from agentevolver.errors import UsageError

ROOT = Path("experiments")
SHOWN = 8


def find_experiment(name: str, root: Path = ROOT, *, asked: str | None = None) -> Path:
    """Return the folder of an experiment that was started before.

    Args:
        name: its path, project/experiment, or experiment.
        root: where experiments lie.
        asked: what the message begins with; None: the name.

    Raises:
        UsageError: there is none, or more than one.
    """
    asked = asked or name
    found = [
        path
        for path in dict.fromkeys((Path(name), root / name, *sorted(root.glob(f"*/{name}"))))
        if (path / "launches").is_dir()
    ]
    if not found:
        raise UsageError(f"{asked}: no experiment of that name was started here; {known_experiments(root)}")
    if len(found) > 1:
        raise UsageError(f"{asked} may be {' or '.join(map(str, found))}: give the folder")
    return found[0]


def known_experiments(root: Path = ROOT) -> str:
    """Say which experiments there are."""
    names = sorted({f"{path.parent.parent.name}/{path.parent.name}" for path in root.glob("*/*/launches")})
    return f"there are {', '.join(names[:SHOWN])}" if names else f"{root} holds none"

"""Success of the rounds, and which one was the best; functions of the manifest alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentevolver.recipes.agent0.manifest import EVALUATE

Round = Mapping[str, Any]


def success_of(part: Round, split: str) -> float | None:
    """Return the success of a round's executor on a split, None if it was not evaluated."""
    stage = part["stages"].get(EVALUATE, {})
    found = stage.get("metrics", {}).get(split)
    return None if found is None else float(found["success"]["mean"])


def best_of(rounds: Sequence[Round], split: str) -> int | None:
    """Return the round with the greatest success on a split, of equal ones the first; None if none was evaluated."""
    found = [(success, -int(part["round"])) for part in rounds if (success := success_of(part, split)) is not None]
    return -max(found)[1] if found else None

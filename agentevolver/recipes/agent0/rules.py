"""Rules of rounds: when they stop, and which one was the best; functions of the manifest alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentevolver.recipes.agent0.manifest import DONE, EVALUATE, LABEL
from agentevolver.recipes.agent0.settings import StopSettings

Round = Mapping[str, Any]


def success_of(part: Round, split: str) -> float | None:
    """Return the success of a round's executor on a split, None if it was not evaluated."""
    stage = part["stages"].get(EVALUATE, {})
    found = stage.get("metrics", {}).get(split)
    return None if found is None else float(found["success"]["mean"])


def vote_right_of(part: Round) -> float | None:
    """Return the share of a round's tasks whose vote is the executed answer, None if none is known."""
    stage = part["stages"].get(LABEL, {})
    value = stage.get("metrics", {}).get("vote_right") if stage.get("state") == DONE else None
    return None if value is None else float(value)


def best_of(rounds: Sequence[Round], split: str) -> int | None:
    """Return the round with the greatest success on a split, of equal ones the first; None if none was evaluated."""
    found = [(success, -int(part["round"])) for part in rounds if (success := success_of(part, split)) is not None]
    return -max(found)[1] if found else None


def stop_after_labels(settings: StopSettings, rounds: Sequence[Round]) -> str | None:
    """Return why the last round's tasks are not to be trained on, None if they are."""
    if settings.label_drop is None or len(rounds) < 2:
        return None
    now = vote_right_of(rounds[-1])
    before = next((value for part in reversed(rounds[:-1]) if (value := vote_right_of(part)) is not None), None)
    if now is None or before is None or before - now <= settings.label_drop:
        return None
    return (
        f"the share of tasks whose vote is the executed answer fell from {before:.2f} to {now:.2f}, more than "
        f"recipes.agent0.stop.label_drop = {settings.label_drop:g}"
    )


def stop_after_evaluation(settings: StopSettings, rounds: Sequence[Round], split: str) -> str | None:
    """Return why there is to be no further round after the last one, None if there is."""
    best, now = best_of(rounds, split), success_of(rounds[-1], split)
    top = success_of(rounds[best], split) if best is not None else None
    if settings.val_drop is None or now is None or top is None or top - now <= settings.val_drop:
        return None
    return (
        f"success on {split} is {now:.3f}, and was {top:.3f} after round {best}: it fell by more than "
        f"recipes.agent0.stop.val_drop = {settings.val_drop:g}"
    )

"""Replay, what an executor is trained on in a round: the round's own tasks, and some of the earlier rounds',
so that it does not forget what it could do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def replayed(fresh: Sequence[T], earlier: Sequence[T], share: float, seed: int) -> list[T]:
    """Return the fresh tasks and behind them so many earlier ones that these are `share` (0 to below 1) of all, or all
    there are. Which ones is drawn without repetition, and equal for equal arguments."""
    if not 0 <= share < 1:
        raise ValueError(f"replay = {share!r}, expected a share from 0 on and below 1")
    wanted = min(round(share / (1 - share) * len(fresh)), len(earlier))
    return [*fresh, *random.Random(seed).sample(list(earlier), wanted)]

"""Which rollouts of a group are guided, and which tasks keep the guidance in their training prompt.

Rollouts: none (woexp), all of them, or eta x n of n (mixed), rounded down as in the paper (eq. 15) or to the nearest as
    in the original.
Which ones is drawn from the group's name, so that every process comes to the same answer without asking another.
Tasks: all discard, all keep, or a share of them (hybrid), met exactly over the tasks of a step in their order.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import Literal

from experience_manager.settings import ExperienceSettings, RolloutMode, SampleMode

Rounding = Literal["floor", "round"]


def guided_count(n: int, mode: RolloutMode, ratio: float, rounding: Rounding) -> int:
    """Return how many of n rollouts are guided."""
    if mode == "mixed":
        # 0.7 x 10 is 7 and not 6.999..: a hair above a whole number belongs to it.
        return math.floor(ratio * n + 1e-9) if rounding == "floor" else round(ratio * n)
    return n if mode == "all" else 0


def guided_rollouts(group_id: str, n: int, mode: RolloutMode, ratio: float, rounding: Rounding) -> frozenset[int]:
    """Return the numbers, 0..n-1, of a group's guided rollouts."""
    seed = int.from_bytes(hashlib.sha256(group_id.encode()).digest()[:8], "big")
    return frozenset(random.Random(seed).sample(range(n), guided_count(n, mode, ratio, rounding)))


def is_guided(settings: ExperienceSettings, group_id: str, rollout_id: int, n: int, *, validation: bool) -> bool:
    """Return whether a rollout is to be guided; whether it was, is only known once a text has been injected.

    `n` is the number of rollouts that a task is asked for; where validation wants both kinds, a task has 2 n, the
    guided ones last.
    """
    if validation and settings.val_rollout_mode == "both":
        return rollout_id >= n
    mode: RolloutMode = settings.val_rollout_mode if validation else settings.train_rollout_mode  # type: ignore[assignment]
    return rollout_id in guided_rollouts(group_id, n, mode, settings.rollout_ratio, settings.ratio_rounding)


def validation_rollouts(settings: ExperienceSettings, n: int) -> tuple[int, int]:
    """Return how many of a validation task's rollouts go without and with guidance; `n` as in `is_guided`."""
    if settings.val_rollout_mode == "both":
        return n, n
    guided = guided_count(n, settings.val_rollout_mode, settings.rollout_ratio, settings.ratio_rounding)
    return n - guided, guided


def keeps_guidance(mode: SampleMode, keep_ratio: float, place: int) -> bool:
    """Return whether the task in a step's place 0, 1, ... keeps its guidance: of any first m tasks, floor(ratio x m)
    do."""
    ratio = {"allkeep": 1.0, "alldiscard": 0.0, "hybrid": keep_ratio}[mode]
    return math.floor(ratio * (place + 1) + 1e-9) > math.floor(ratio * place + 1e-9)

"""The clip rule `ambiguity`: a wider upper clip for tasks with an ambiguous label."""

from __future__ import annotations

from agentevolver.recipes.adpo.ambiguity import BUCKETS, bucket, check_range, p_hat, upper_clip
from agentevolver.types import Trajectory


class AmbiguityClip:
    """Upper clip of ADPO: `usual + bonus` up to p = `lo`, falling linearly to `usual` at p = `hi`; `usual` if p is
    null.

    Raises PHatError if a task has no p, ValueError if an option is invalid.
    """

    groups = BUCKETS

    def __init__(self, usual: float, *, lo: float = 0.3, hi: float = 0.8, bonus: float = 0.1) -> None:
        check_range(lo, hi)
        if not bonus >= 0.0:
            raise ValueError(f"bonus = {bonus!r}: write a number from 0 on")
        self._usual, self._lo, self._hi, self._bonus = usual, lo, hi, bonus

    def __call__(self, trajectory: Trajectory) -> float | None:
        return upper_clip(p_hat(trajectory.task), self._usual, self._lo, self._hi, self._bonus)

    def group(self, trajectory: Trajectory) -> int:
        return bucket(p_hat(trajectory.task), self._lo, self._hi)

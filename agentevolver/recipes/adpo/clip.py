"""A wider upper clip where a task's label is trusted less: the clip rule `ambiguity`."""

from __future__ import annotations

from agentevolver.recipes.adpo.ambiguity import BUCKETS, bucket, check_range, p_hat, upper_clip
from agentevolver.types import Trajectory


class AmbiguityClip:
    """The clip of ADPO: wider by `bonus` at p = `lo`, the usual one from p = `hi` on and where p is null.

    Raises PHatError for a task that does not say p, ValueError for options that are none.
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
        """Return the place in `BUCKETS` of a rollout, by its task's p."""
        return bucket(p_hat(trajectory.task), self._lo, self._hi)

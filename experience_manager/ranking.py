"""Extension point `exp_manager.ranking`: ranks and prunes experiences by other criteria than similarity and lift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentevolver.types import Trajectory
from agentevolver.utils.recipes import StageSettings
from experience_manager.attempts import PastAttempt
from experience_manager.errors import ExperienceError
from experience_manager.question import Question
from experience_manager.store import Hit, Store


@dataclass(frozen=True, slots=True)
class RankingContext:
    """Constructor input of a ranking; `source` is the run whose steps it records, or "" outside of a run."""

    store: Store
    workspace: str
    source: str = ""


class Ranking(Protocol):
    """Ranks the experiences found for a task, and prunes harmful ones in place of `pruning.min_lift`.

    Constructed with a `RankingContext` and the options of `exp_manager.ranking`. All methods but `rank` run in a thread
    and may raise ExperienceError.
    """

    candidates: int
    """Number of nearest experiences to rank."""

    def rank(self, hits: Sequence[Hit], question: Question) -> list[Hit]:
        """Return the hits, best first; the input is sorted by similarity."""
        ...

    def record(
        self, step: int, trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]
    ) -> dict[str, float]:
        """Record a training step's rollouts and return metrics. A step may come again after a resume.

        Args:
            attempts: the graded rollouts among them, as `read_attempts` returns them.
        """
        ...

    def prune(self) -> int:
        """Delete harmful experiences; return how many."""
        ...

    def start_over(self) -> None:
        """The run restarts at step 1: let `record` accept its steps again. Earlier credit stays."""
        ...


def make_ranking(settings: StageSettings | None, context: RankingContext) -> Ranking | None:
    """Return the configured ranking, or None if there is none; raises ExperienceError."""
    if settings is None:
        return None
    try:
        ranking: Ranking = settings.make("ranking", context)
    except ValueError as error:
        raise ExperienceError(f"exp_manager.ranking: {' '.join(str(error).split())}") from error
    return ranking

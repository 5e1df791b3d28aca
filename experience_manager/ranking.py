"""Extension point `exp_manager.ranking`: experiences ranked, and judged, by more than similarity and lift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentevolver.types import Trajectory
from agentevolver.utils import recipes
from agentevolver.utils.names import load_named
from agentevolver.utils.recipes import StageSettings
from experience_manager.attempts import PastAttempt
from experience_manager.errors import ExperienceError
from experience_manager.question import Question
from experience_manager.store import Hit, Store


@dataclass(frozen=True, slots=True)
class RankingContext:
    """What a ranking works on: a workspace of a store, and the run whose steps it takes ("" outside of a run)."""

    store: Store
    workspace: str
    source: str = ""


class Ranking(Protocol):
    """Ranks the experiences found for a task, and prunes those that harm, in place of `pruning.min_lift`.

    Made with a `RankingContext` and the options of `exp_manager.ranking`. All methods but `rank` run in a thread and
    may raise ExperienceError.
    """

    candidates: int
    """How many of the nearest experiences are ranked."""

    def rank(self, hits: Sequence[Hit], question: Question) -> list[Hit]:
        """Return the hits, best first; they come sorted by similarity."""
        ...

    def record(
        self, step: int, trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]
    ) -> dict[str, float]:
        """Take the rollouts of a training step, which may be a repeated one, and return metrics.

        Args:
            attempts: the graded ones among them, as `read_attempts` returns them.
        """
        ...

    def prune(self) -> int:
        """Delete what harms; return how many."""
        ...

    def start_over(self) -> None:
        """Take the run's steps from the first one on again."""
        ...


def make_ranking(settings: StageSettings | None, context: RankingContext) -> Ranking | None:
    """Return the ranking that a configuration names, or None if it names none; raises ExperienceError."""
    if settings is None:
        return None
    try:
        make: Any = load_named(settings.use, recipes.stages("ranking"))
        ranking: Ranking = make(context, **settings.options)
    except (TypeError, ValueError) as error:
        raise ExperienceError(f"exp_manager.ranking: {' '.join(str(error).split())}") from error
    return ranking

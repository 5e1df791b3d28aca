"""The ranking `utility`. Its numbers are columns of the store's file, written in the store's own transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from math import floor, sqrt
from typing import Any

from agentevolver.recipes.utility.estimate import Pair, UtilityEstimate, credited, is_harmful, pairs_of, report
from agentevolver.recipes.utility.settings import UtilityOptions
from agentevolver.types import Trajectory
from experience_manager.attempts import PastAttempt
from experience_manager.experience import Experience
from experience_manager.question import Question
from experience_manager.ranking import RankingContext
from experience_manager.store import Hit


class UtilityRanking:
    def __init__(self, context: RankingContext, **options: Any) -> None:
        self._store, self._workspace, self._source = context.store, context.workspace, context.source
        self._options = UtilityOptions.model_validate(options)
        self.candidates = self._options.candidates

    def rank(self, hits: Sequence[Hit], question: Question) -> list[Hit]:
        """Return the hits by similarity and utility, best first.

        A task that explores gets the hits by their lower bound (mean minus one standard deviation), lowest first: these
        are the ones that need evidence most.
        """
        if explores(question, self._options.explore):
            return sorted(hits, key=lambda hit: (self._lower_bound(hit.experience), -hit.similarity))
        weight = self._options.rank_weight
        return sorted(hits, key=lambda hit: -hit.similarity - weight * hit.experience.paired_utility)

    def record(
        self, step: int, trajectories: Sequence[Trajectory], attempts: Sequence[PastAttempt]
    ) -> dict[str, float]:
        found = pairs_of(trajectories, attempts)
        groups = len(found.pairs) if self.credit(step, found.pairs) else 0
        with self._store.database.reading() as db:
            known = self._beliefs(db, None).values()
        metrics = {"groups": float(groups), "without_variance": float(found.without_variance)}
        metrics |= report(known, self._options.prior_sd, self._options.certainty)
        return {f"utility/{name}": value for name, value in metrics.items()}

    def credit(self, step: int, pairs: Sequence[Pair]) -> bool:
        """Credit a step's pairs in one transaction; unknown ids are skipped. Returns False, and does nothing, if the
        step or a later one was credited already."""
        with self._store.database.writing() as db:
            known = "SELECT step FROM credited WHERE workspace = ? AND source = ?"
            last = db.execute(known, (self._workspace, self._source)).fetchone()
            if last is not None and step <= last[0]:
                return False
            db.execute("INSERT OR REPLACE INTO credited VALUES (?, ?, ?)", (self._workspace, self._source, step))
            beliefs = self._beliefs(db, {i for pair in pairs for i in pair.experience_ids})
            for pair in pairs:
                ids = [identifier for identifier in pair.experience_ids if identifier in beliefs]
                after = credited([beliefs[i] for i in ids], pair, self._options.prior_sd)
                beliefs |= zip(ids, after, strict=True)
            update = (
                "UPDATE records SET paired = ?, paired_utility = ?, paired_precision = ? WHERE workspace = ? AND id = ?"
            )
            db.executemany(update, [(b.groups, b.mean, b.precision, self._workspace, i) for i, b in beliefs.items()])
        return True

    def start_over(self) -> None:
        """Forget which of the run's steps were credited, so that a new start credits them again; existing estimates
        stay.

        If only step 1 was credited, it stays so: the run may have been killed in its first step, which it then repeats.
        """
        with self._store.database.writing() as db:
            db.execute(
                "DELETE FROM credited WHERE workspace = ? AND source = ? AND step > 1", (self._workspace, self._source)
            )

    def prune(self) -> int:
        with self._store.database.writing() as db:
            beliefs = self._beliefs(db, None, "pinned = 0")
            gone = [
                identifier
                for identifier, belief in beliefs.items()
                if is_harmful(belief, self._options.prior_sd, self._options.certainty)
            ]
            return sum(self._store.remove(db, self._workspace, "id = ?", (identifier,)) for identifier in gone)

    def _lower_bound(self, experience: Experience) -> float:
        belief = UtilityEstimate(experience.paired, experience.paired_utility, experience.paired_precision)
        return belief.mean - sqrt(belief.variance(self._options.prior_sd))

    def _beliefs(
        self, db: sqlite3.Connection, identifiers: Iterable[str] | None, condition: str = "1"
    ) -> dict[str, UtilityEstimate]:
        query = f"SELECT id, paired, paired_utility, paired_precision FROM records WHERE workspace = ? AND {condition}"
        if identifiers is None:
            rows = db.execute(query, (self._workspace,)).fetchall()
        else:
            rows = [row for i in sorted(identifiers) for row in db.execute(f"{query} AND id = ?", (self._workspace, i))]
        return {row[0]: UtilityEstimate(*row[1:]) for row in rows}


def explores(question: Question, share: float) -> bool:
    """Whether a task is in the share that explores, which is spread evenly over a step's training tasks."""
    number = question.place + question.step
    return not question.validation and floor((number + 1) * share) > floor(number * share)

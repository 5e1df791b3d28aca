"""How far two graders agree on the same rollouts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from agentevolver.types import Outcome


@dataclass(frozen=True, slots=True)
class ComparedOutcome(Outcome):
    """An outcome beside which another grader's stands: `compared` is {"grader", "score", "success"}. Only the first one
    counts."""

    compared: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, outcome: Outcome, grader: str, other: Outcome) -> Self:
        """Return `outcome` with another grader's verdict beside it."""
        return cls(
            **asdict(outcome),
            compared={"grader": grader, "score": other.score, "success": other.success, "reason": other.reason},
        )


def agreement(pairs: Sequence[tuple[bool, float, bool, float]]) -> dict[str, float]:
    """Return how far a second grader agrees with a first one.

    Args:
        pairs: (success, score) of the first grader, then of the second, per rollout.

    Returns:
        n; agreement: the share of equal success; kappa: Cohen's, beyond chance (1 if there is nothing to agree beyond
        chance and all are equal); false_success and false_failure: the share of the first's failures that the second
        calls successes, and the other way round; score_gap: mean absolute difference of the scores. Empty without
        pairs.
    """
    if not pairs:
        return {}
    n = len(pairs)
    observed = sum(first == second for first, _, second, _ in pairs) / n
    share_first, share_second = sum(p[0] for p in pairs) / n, sum(p[2] for p in pairs) / n
    by_chance = share_first * share_second + (1 - share_first) * (1 - share_second)
    failures = [second for first, _, second, _ in pairs if not first]
    successes = [second for first, _, second, _ in pairs if first]
    return {
        "n": float(n),
        "agreement": observed,
        "kappa": (observed - by_chance) / (1 - by_chance) if by_chance < 1 else float(observed == 1),
        "false_success": sum(failures) / len(failures) if failures else 0.0,
        "false_failure": sum(not second for second in successes) / len(successes) if successes else 0.0,
        "score_gap": statistics.fmean(abs(a - b) for _, a, _, b in pairs),
    }


def agreement_metrics(trajectories: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return `grader/<first>_vs_<second>/<name>` for trajectory records (`Trajectory.to_dict()`) whose outcome was
    compared."""
    pairs: dict[str, list[tuple[bool, float, bool, float]]] = {}
    for record in trajectories:
        outcome = record["outcome"] or {}
        compared = outcome.get("compared")
        if compared:
            key = f"{record['task']['evaluator']}_vs_{compared['grader']}"
            pairs.setdefault(key, []).append(
                (outcome["success"], outcome["score"], compared["success"], compared["score"])
            )
    return {f"grader/{key}/{name}": value for key, found in pairs.items() for name, value in agreement(found).items()}

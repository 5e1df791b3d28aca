"""Ratings of players by the scores of their games (Elo, The Rating of Chessplayers, 1978)."""

from __future__ import annotations

FIRST = 1000.0
"""The rating of the start, which stays."""
SCALE = 400.0
"""Rating points by which the odds of a win are ten to one."""


def expected(own: float, other: float) -> float:
    """Return the expected score of a player against another, 0..1: 1 / (1 + 10^((other - own) / 400))."""
    return float(1.0 / (1.0 + 10.0 ** ((other - own) / SCALE)))


def gain(own: float, other: float, score: float, k: float) -> float:
    """Return the points that a mean score (0..1) against another player is worth; the other loses as many."""
    return k * (score - expected(own, other))

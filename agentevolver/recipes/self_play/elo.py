"""Ratings of players by the scores of their games (Elo, The Rating of Chessplayers, 1978), and a rate's interval."""

from __future__ import annotations

import math

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


def wilson(wins: float, games: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the interval of a rate at 95 % (Wilson 1927).

    Args:
        wins: how many of the games count; a draw that counts half makes the interval wider than it need be.
        games: how many there were, from 1.
        z: quantile of the normal distribution.
    """
    if games < 1:
        raise ValueError("no games, no interval")
    rate, square = wins / games, z * z
    middle = (rate + square / (2 * games)) / (1 + square / games)
    half = z * math.sqrt(rate * (1 - rate) / games + square / (4 * games * games)) / (1 + square / games)
    return max(0.0, middle - half), min(1.0, middle + half)

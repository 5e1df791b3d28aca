"""Tasks of textarena: a game, the agent's seat, a seed, and the other players."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from env_service.environments.textarena.games import GAMES
from env_service.environments.textarena.players import check_player

SPLIT_SEEDS = {"dev": range(0, 500), "test": range(500, 1000), "train": range(1000, 1_000_000)}
_ID = re.compile(r"(?P<game>[A-Za-z0-9-]{1,40})\.(?P<seat>\d)\.(?P<seed>0|[1-9]\d{0,5})\.(?P<others>[a-z]{1,10})")


@dataclass(frozen=True, slots=True)
class TaskId:
    """One task: `GAME.SEAT.SEED.OTHERS`; seats count from 0, as the games do."""

    game: str
    seat: int
    seed: int
    others: str

    @classmethod
    def read(cls, task_id: str) -> TaskId:
        match = _ID.fullmatch(task_id)
        if match is None or match["game"] not in GAMES:
            raise ValueError(
                f"there is no textarena task {task_id[:80]!r}; an id reads like `TicTacToe-v0.0.1000.random`: a game "
                f"of {', '.join(GAMES)}, the agent's seat, a seed below 1,000,000 and who plays the other seats"
            )
        found = cls(match["game"], int(match["seat"]), int(match["seed"]), match["others"])
        if found.seat >= GAMES[found.game].seats:
            raise ValueError(f"{found.game} has the seats 0 to {GAMES[found.game].seats - 1}; got {found.seat}")
        check_player(found.others, found.game)
        return found

    def __str__(self) -> str:
        return f"{self.game}.{self.seat}.{self.seed}.{self.others}"


def task_ids(split: str, params: Mapping[str, Any] | None) -> list[str]:
    """Return the ids of a split: of each game in `games` the first `seeds` seeds, each seat in turn, against each of
    `others`; by default TicTacToe and Nim, 20 seeds, random moves. Raises ValueError."""
    asked: dict[str, Any] = {"games": ["TicTacToe-v0", "Nim-v0"], "seeds": 20, "others": ["random"]}
    if unknown := sorted(set(params or {}) - set(asked)):
        raise ValueError(f"unknown parameter {unknown[0]!r} of textarena's tasks; known: {', '.join(asked)}")
    if split not in SPLIT_SEEDS:
        raise ValueError(f"unknown split {split!r}; textarena has: {', '.join(SPLIT_SEEDS)}")
    games, seeds, others = {**asked, **(params or {})}.values()
    if not isinstance(games, list) or not games or not all(game in GAMES for game in games):
        raise ValueError(f"games={games!r} must be a list with some of: {', '.join(GAMES)}")
    if type(seeds) is not int or not 1 <= seeds <= 500:
        raise ValueError(f"seeds={seeds!r} must be a whole number from 1 to 500")
    if not isinstance(others, list) or not others or not all(isinstance(kind, str) for kind in others):
        raise ValueError(f"others={others!r} must be a list of players")
    for game in games:
        for kind in others:
            check_player(kind, game)
    first = SPLIT_SEEDS[split].start
    return [
        str(TaskId(game, seat, first + number, kind))
        for game in games
        for number in range(seeds)
        for seat in range(GAMES[game].seats)
        for kind in others
    ]

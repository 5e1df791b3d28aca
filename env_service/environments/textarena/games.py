"""The games: number of players, and candidates for legal moves.

A game's candidates include all its moves, or enough to have a legal one in every position;
`match.TextArenaMatch.legal_moves` filters them by the game's rules.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Moves = Callable[[Any, int], Iterable[str]]
"""Moves to try: of the package's game, and the seat whose turn it is."""


@dataclass(frozen=True, slots=True)
class TextArenaGame:
    """One game: its number of seats and its candidate moves; None: the game lists its moves.

    `searched`: depth of `players.Minimax`; 0 where chance or hidden cards make search useless.
    """

    seats: int
    moves: Moves | None = None
    searched: int = 0


def _numbers(text: str, *ranges: Iterable[Any]) -> Moves:
    moves = tuple(text.format(*values) for values in itertools.product(*ranges))
    return lambda game, seat: moves


def _squares(files: str, ranks: int, form: str, straight: int) -> Moves:
    """Moves from a square along its file, rank or diagonals, at most `straight` away."""
    names = [(column, rank, f"{file}{rank + 1}") for column, file in enumerate(files) for rank in range(ranks)]
    moves = tuple(
        form.format(start, end)
        for (c, r, start), (d, q, end) in itertools.permutations(names, 2)
        if max(abs(c - d), abs(r - q)) <= straight and (c == d or r == q or abs(c - d) == abs(r - q))
    )
    return lambda game, seat: moves


def _nim(game: Any, seat: int) -> list[str]:
    piles = game.state.game_state["piles"]
    return [f"[{pile} {n}]" for pile, size in enumerate(piles) for n in range(1, size + 1)]


def _chopsticks(game: Any, seat: int) -> list[str]:
    total = sum(game.state.game_state["hands"][seat])
    attacks = [f"[attack {mine} {theirs}]" for mine in range(2) for theirs in range(2)]
    return [*attacks, *(f"[split {left} {total - left}]" for left in range(total + 1))]


def _blotto(game: Any, seat: int) -> list[str]:
    """Divisions of all units among the fields, in steps of a fifth of a field's average."""
    names, total = list(game.field_names), int(game.num_total_units)
    step = max(1, total // (len(names) * 5))
    parts = [*range(0, total + 1, step)]
    found = []
    for head in itertools.product(parts, repeat=len(names) - 1):
        if sum(head) <= total:
            units = [*head, total - sum(head)]
            found.append("[" + " ".join(f"{name}{n}" for name, n in zip(names, units, strict=True)) + "]")
    return found


def _dice(game: Any, seat: int) -> list[str]:
    bid = game.state.game_state["current_bid"]
    dice = sum(game.state.game_state["remaining_dice"].values())
    highest = max(dice, bid["quantity"] + 1)
    bids = [f"[Bid: {n}, {face}]" for n in range(1, highest + 1) for face in range(1, 7)]
    # As often as not the last bid is doubted: bids alone would rise for ever.
    return [*bids, *["[Call]"] * (len(bids) // 2)]


def _chips(game: Any, seat: int) -> list[str]:
    amounts = (1, 2, 5, 10, 20, 40, 100, 200)
    raises = [f"[{verb} {n}]" for verb in ("bet", "raise") for n in amounts]
    return ["[check]", "[call]", "[fold]", *["[check]", "[call]"] * 4, *raises]


def _speech(*decisions: str) -> Moves:
    moves = tuple(f"I have decided. {decision}" for decision in decisions)
    return lambda game, seat: moves


def _mafia(game: Any, seat: int) -> list[str]:
    if game.phase.value == "Day-Discussion":
        return ["I am a villager.", "I know nothing yet.", "Somebody here is lying."]
    alive = game.state.game_state["alive_players"]
    return [f"[{player}]" for player in alive if player != seat]


def _three_prisoners(game: Any, seat: int) -> list[str]:
    others = [other for other in range(3) if other != seat]
    choices = itertools.product(("cooperate", "defect"), repeat=2)
    return [" ".join(f"[{o} {c}]" for o, c in zip(others, both, strict=True)) for both in choices]


_CARDS = ["A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K"]
_UNITS = ("Wheat", "Wood", "Sheep", "Brick", "Ore")


def _negotiation(game: Any, seat: int) -> list[str]:
    offers = [f"[Offer: 1 {a} -> 1 {b}]" for a in _UNITS for b in _UNITS if a != b]
    return ["[Accept]", "[Deny]", *offers]


_NINE, _EIGHT, _SEVEN, _FOUR = range(9), range(8), range(7), range(4)

GAMES: Mapping[str, TextArenaGame] = MappingProxyType(
    {
        "Alquerque-v0": TextArenaGame(2, _squares("abcde", 5, "[{} {}]", 2)),
        "Breakthrough-v0-small": TextArenaGame(2, _squares("abcdef", 6, "[{}{}]", 1), 2),
        "Breakthrough-v0": TextArenaGame(2, _squares("abcdefgh", 8, "[{}{}]", 1)),
        "Briscola-v0": TextArenaGame(2, _numbers("[play {}]", range(1, 4))),
        "Chopsticks-v0": TextArenaGame(2, _chopsticks, 4),
        "ColonelBlotto-v0": TextArenaGame(2, _blotto),
        "ConnectFour-v0": TextArenaGame(2, _numbers("[col {}]", _SEVEN), 3),
        "Crusade-v0": TextArenaGame(2),
        "GameOfPureStrategy-v0": TextArenaGame(2, _numbers("[{}]", _CARDS)),
        "GermanWhist-v0": TextArenaGame(2, _numbers("[play {}]", range(1, 14))),
        "HighSociety-v0": TextArenaGame(2, _numbers("[{}]", range(1, 12))),
        "IndianPoker-v0": TextArenaGame(2, _chips),
        "IteratedMatchingPennies-v0": TextArenaGame(2, _numbers("[{}]", ("heads", "tails"))),
        "IteratedPrisonersDilemma-v0": TextArenaGame(2, _speech("[Cooperate]", "[Defect]")),
        "IteratedRockPaperScissors-v0": TextArenaGame(2, _numbers("[{}]", ("rock", "paper", "scissors"))),
        "IteratedTwoThirdsAverage-v0": TextArenaGame(2, _numbers("[{}]", range(101))),
        "KuhnPoker-v0": TextArenaGame(2, _numbers("[{}]", ("check", "bet", "call", "fold"))),
        "LiarsDice-v0": TextArenaGame(3, _dice),
        "MemoryGame-v0": TextArenaGame(2, _numbers("[{} {} {} {}]", _FOUR, _FOUR, _FOUR, _FOUR)),
        "Nim-v0": TextArenaGame(2, _nim, 12),
        "Othello-v0-tiny": TextArenaGame(2, _numbers("[{}, {}]", _FOUR, _FOUR), 4),
        "Othello-v0": TextArenaGame(2, _numbers("[{}, {}]", _EIGHT, _EIGHT)),
        "PigDice-v0-short": TextArenaGame(2, _numbers("[{}]", ("roll", "hold"))),
        "Poker-v0-small": TextArenaGame(3, _chips),
        "SecretMafia-v0": TextArenaGame(6, _mafia),
        "SimpleNegotiation-v0": TextArenaGame(2, _negotiation),
        "SimpleTak-v0": TextArenaGame(2, _numbers("[{}]", range(16))),
        "Snake-v0": TextArenaGame(2, _numbers("[{}]", ("up", "down", "left", "right"))),
        "Surround-v0": TextArenaGame(2, _numbers("[{}]", ("up", "down", "left", "right"))),
        "ThreePlayerGOPS-v0": TextArenaGame(3, _numbers("[{}]", _CARDS)),
        "ThreePlayerIPD-v0": TextArenaGame(3, _three_prisoners),
        "ThreePlayerTicTacToe-v0": TextArenaGame(3, _numbers("[{}]", range(25))),
        "TicTacToe-v0": TextArenaGame(2, _numbers("[{}]", _NINE), 4),
        "WildTicTacToe-v0": TextArenaGame(2, _numbers("[{} {}]", "XO", _NINE), 2),
    }
)

_LISTED = re.compile(r"\[[^\[\]\n]{1,20}\]")


def listed(texts: Iterable[str]) -> list[str]:
    for text in reversed(list(texts)):
        parts = re.split(r"(?:available|valid) moves:", text, flags=re.IGNORECASE)
        if len(parts) > 1:
            return list(dict.fromkeys(_LISTED.findall(parts[-1])))
    return []

"""A match: the package's game, its messages to each seat, and its legal moves.

Games draw from Python's global generator. A match saves and restores the generator's state, so a seed always gives the
same game.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

from env_service.environments.textarena.games import GAMES, listed
from env_service.environments.textarena.package import make, package, wraps_actions

LONGEST_MOVE = 1000
# Copies of the game that are asked for a legal move before a seat counts as having none.
_MOST_TRIED = 4096


class TextArenaMatch:
    """One match of a game, from its first message to its outcome.

    Args:
        game_id: of `games.GAMES`.
        seed: of the game's draws.

    Raises TextarenaNotInstalled.
    """

    def __init__(self, game_id: str, seed: int) -> None:
        self.game_id = game_id
        self.seats = GAMES[game_id].seats
        self.game: Any = make(game_id)
        self._wraps = wraps_actions(game_id)
        self._types: Any = package().ObservationType
        # What each seat was told before its turn, and its last messages for `listed`.
        self._heard: dict[int, list[tuple[int, str, Any]]] = {seat: [] for seat in range(self.seats)}
        self._random: Any = random.Random(seed).getstate()
        self._drawing(lambda: self.game.reset(num_players=self.seats, seed=seed))
        self.moves = 0
        self.refused: str | None = None
        self._watch(self.game, self._refuse)

    def _refuse(self, reason: str) -> None:
        self.refused = reason

    @property
    def over(self) -> bool:
        return bool(self.game.state.done)

    @property
    def turn(self) -> int:
        return int(self.game.state.current_player_id)

    @property
    def outcome(self) -> dict[int, float]:
        """The reward of each seat, -1 to 1; empty until the game is over."""
        rewards = self.game.state.rewards if self.over else None
        return {int(seat): float(reward) for seat, reward in (rewards or {}).items()}

    def reason(self, seat: int) -> str:
        return str(self.game.state.game_info[seat].get("reason") or "")

    def broke_rules(self, seat: int) -> bool:
        return bool(self.game.state.game_info[seat].get("invalid_move"))

    def hears(self, seat: int) -> tuple[str, str]:
        """Return a seat's new messages: the game's rules (once), and the rest.

        Only the last of several boards is included, and none of the seat's own words.
        """
        new = self.game.state.observations[seat]
        self.game.state.observations[seat] = []
        if new:
            self._heard[seat] = new
        kinds = self._types
        boards = [index for index, (_, _, kind) in enumerate(new) if kind == kinds.GAME_BOARD]
        rules, rest = [], []
        for index, (sender, text, kind) in enumerate(new):
            if kind == kinds.PROMPT:
                rules.append(text.strip())
            elif kind == kinds.PLAYER_ACTION:
                if sender != seat:
                    rest.append(f"[{self.game.state.role_mapping.get(sender, f'Player {sender}')}] {text.strip()}")
            elif kind != kinds.GAME_BOARD or index == boards[-1]:
                rest.append(text.strip())
        return "\n".join(rules), "\n".join(part for part in rest if part)

    def play(self, said: str) -> str | None:
        """Make the move of the seat whose turn it is; returns the refusal, or None.

        After a refusal the game asks again, or the seat loses.
        """
        self.refused = None
        move = self.written(said)
        self._drawing(lambda: self.game.step(move))
        self.moves += 1
        return self.refused

    def written(self, said: str) -> str:
        """Return a seat's text as a move: without thoughts, at most `LONGEST_MOVE` characters, in brackets if the
        package adds them."""
        text = said.rpartition("</think>")[2].strip()[-LONGEST_MOVE:]
        return f"[{text}]" if self._wraps and "[" not in text and "]" not in text else text

    def candidates(self) -> list[str]:
        moves, seat = GAMES[self.game_id].moves, self.turn
        if moves is not None:
            return list(moves(self.game, seat))
        return listed(text for _, text, _ in [*self._heard[seat], *self.game.state.observations[seat]])

    def legal_moves(self, rng: random.Random | None = None) -> Sequence[str]:
        """Return the legal moves of the seat whose turn it is; with `rng`, one drawn at random."""
        tried = list(dict.fromkeys(self.candidates())) if rng is None else self.candidates()
        if rng is not None:
            rng.shuffle(tried)
        found = []
        for move in tried[:_MOST_TRIED]:
            if self.after(move) is not None:
                found.append(move)
                if rng is not None:
                    break
        return found

    def after(self, move: str) -> TextArenaMatch | None:
        """Return a copy of this match after a move, or None if the move is illegal. The copy draws its own random
        numbers."""
        other = copy.copy(self)
        other.game = self._position()
        other.refused = None
        other._heard = {seat: [] for seat in range(self.seats)}
        self._watch(other.game, other._refuse)
        try:
            other._drawing(lambda: other.game.step(other.written(move)))
        except Exception:  # the boundary: what the package raises on a move means that it cannot take it
            return None
        return None if other.refused is not None else other

    def _position(self) -> Any:
        state = self.game.state
        said = state.logs, state.observations
        state.logs, state.observations = [], {seat: [] for seat in state.observations}
        try:
            return copy.deepcopy(self.game)
        finally:
            state.logs, state.observations = said

    def _watch(self, game: Any, tell: Callable[[str], None]) -> None:
        plain = type(game.state).set_invalid_move
        state = game.state

        def refuse(reason: str, *args: Any, **kwargs: Any) -> Any:
            tell(reason)
            return plain(state, reason, *args, **kwargs)

        state.set_invalid_move = refuse

    def _drawing(self, act: Callable[[], Any]) -> None:
        outside = random.getstate()
        random.setstate(self._random)
        try:
            act()
        finally:
            self._random = random.getstate()
            random.setstate(outside)

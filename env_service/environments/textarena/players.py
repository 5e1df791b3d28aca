"""Players of the other seats: random, minimax, or a chat model.

If a chat model does not answer, the episode fails without a grade (`PlayerFailed`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from env_service.chat_endpoint import EndpointFailed, complete
from env_service.environments.textarena.games import GAMES
from env_service.environments.textarena.match import TextArenaMatch

NO_MOVE = "I have no legal move."
"""Said where none was found: the game's rules decide what that is worth."""

PLAYERS = ("random", "minimax", "policy", "llm")
POLICY_URL, POLICY_KEY = "ENV_PLAYER_URL", "PLAYER_TOKEN"
_LLM = "ENV_TEXTARENA_LLM"


class PlayerFailed(RuntimeError):
    pass


class SeatPlayer(Protocol):
    def move(self, match: TextArenaMatch, rules: str, heard: str) -> str:
        """Return the move of the seat whose turn it is. `rules` is empty after the first time, `heard` the new
        messages. Raises PlayerFailed."""


@dataclass
class RandomPlayer:
    rng: random.Random

    def move(self, match: TextArenaMatch, rules: str, heard: str) -> str:
        return next(iter(match.legal_moves(self.rng)), NO_MOVE)


@dataclass
class Minimax:
    """Plays the move with the best outcome within the game's `searched` moves; a longer game counts as a draw. Ties are
    drawn at random.

    For two seats with full information. Values of positions are cached.
    """

    rng: random.Random
    _known: dict[tuple[str, int], float] = field(default_factory=dict)

    def move(self, match: TextArenaMatch, rules: str, heard: str) -> str:
        seat, depth = match.turn, GAMES[match.game_id].searched
        values = {}
        for option in match.legal_moves():
            after = match.after(option)
            assert after is not None
            values[option] = self._value(after, seat, depth - 1)
        if not values:
            return NO_MOVE
        best = max(values.values())
        return self.rng.choice([option for option, value in values.items() if value == best])

    def _value(self, match: TextArenaMatch, seat: int, depth: int) -> float:
        if match.over:
            return match.outcome.get(seat, 0.0)
        if depth <= 0:
            return 0.0
        key = (f"{match.turn} {seat} {match.game.state.game_state!r}", depth)
        if key not in self._known:
            reached = (match.after(option) for option in match.legal_moves())
            values = [self._value(after, seat, depth - 1) for after in reached if after is not None]
            self._known[key] = (max(values) if match.turn == seat else min(values)) if values else 0.0
        return self._known[key]


@dataclass
class ChatPlayer:
    """A chat model with an agent's view of its seat. `sampling` are further keys of each request; `seed` gives each
    request a seed. If `silent_when_full`, a full context gives an empty move instead of PlayerFailed."""

    url: str
    model: str
    key: str | None = field(repr=False)
    system: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    silent_when_full: bool = False
    _messages: list[dict[str, Any]] = field(default_factory=list)

    def move(self, match: TextArenaMatch, rules: str, heard: str) -> str:
        if not self._messages:
            self._messages.append({"role": "system", "content": f"{self.system}\n\n{rules}".strip()})
        self._messages.append({"role": "user", "content": heard or "It is your turn."})
        body = {"model": self.model, "messages": self._messages, **self.sampling}
        if self.seed is not None:
            body["seed"] = (self.seed * 1009 + len(self._messages)) % 2**31
        try:
            said = str(complete(self.url, self.key, body).get("content") or "")
        except EndpointFailed as error:
            if self.silent_when_full and str(error) == "HTTP 400":  # as vLLM refuses a prompt that is too long
                return ""
            raise PlayerFailed(f"the model {self.model!r} at {self.url} that plays a seat failed: {error}") from error
        self._messages.append({"role": "assistant", "content": said})
        return said


def check_player(kind: str, game_id: str) -> None:
    if kind not in PLAYERS:
        raise ValueError(f"{kind!r} is none of the players {', '.join(PLAYERS)}")
    if kind == "minimax" and not GAMES[game_id].searched:
        able = [name for name, game in GAMES.items() if game.searched]
        raise ValueError(f"minimax does not play {game_id} (draws, hidden cards or too large): {', '.join(able)}")


def player_of(kind: str, game_id: str, seat: int, seed: int, *, checkpoint: str, system: str) -> SeatPlayer:
    """Return a seat's player: `kind` of `PLAYERS`, `checkpoint` of the player `policy`, a chat model's `system`
    message. Raises ValueError for an unknown kind or a missing endpoint."""
    check_player(kind, game_id)
    if kind in ("random", "minimax"):
        rng = random.Random(f"{game_id} {seed} {seat}")
        return RandomPlayer(rng) if kind == "random" else Minimax(rng)
    own_seed = seed * 31 + seat
    if kind == "policy":
        url = os.environ.get(POLICY_URL)
        if not url:
            raise ValueError(
                f"the player `policy` needs {POLICY_URL}, the address of a player server, where the service starts; a "
                "run with self_play.enable sets it"
            )
        if not checkpoint:
            raise ValueError("the player `policy` needs the parameter checkpoint, which a run's self-play sends")
        address, key = f"{url.rstrip('/')}/v1", os.environ.get(POLICY_KEY)
        return ChatPlayer(address, checkpoint, key, system, seed=own_seed, silent_when_full=True)
    url, model = os.environ.get(f"{_LLM}_URL"), os.environ.get(f"{_LLM}_MODEL")
    if not url or not model:
        raise ValueError(
            f"the player `llm` needs {_LLM}_URL (up to /v1) and {_LLM}_MODEL where the service starts, and {_LLM}_KEY "
            f"with --pass-env {_LLM}_KEY if the model asks for a key"
        )
    return ChatPlayer(url.rstrip("/"), model, os.environ.get(f"{_LLM}_KEY"), system)

"""The environment textarena: the agent has one seat of a game; the task names the other players.

In most games a first illegal move is repeated, and a second one loses. The score is the outcome of the agent's seat. An
instance has its own process, because games draw from Python's global generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.textarena.match import TextArenaMatch
from env_service.environments.textarena.package import installed, package
from env_service.environments.textarena.players import SeatPlayer, player_of
from env_service.environments.textarena.tasks import TaskId, task_ids
from env_service.parameters import laid_over, read_flags

MOST_MOVES = 2000
"""Moves of all seats, after which a game that does not end is broken off."""

_RULES = "You play a game against others. Answer with your move, in the form that the rules say."
_OPEN = "You are at a game's table without a goal: try moves and see what the game answers."


@dataclass(frozen=True, slots=True)
class TextarenaParams:
    """Parameters of `create`.

    - `is_open_query`: the game without a goal; not graded.
    - `max_steps`: the agent's moves, after which the game is aborted and graded 0.
    - `checkpoint`: policy of the player `policy`; self-play sets it.
    """

    is_open_query: bool = False
    max_steps: int = 200
    checkpoint: str = ""


class TextarenaEnv(BaseEnv):
    """One match; see `TextarenaParams` and `tasks.TaskId`."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"
    call_timeout_s: ClassVar[float] = 600.0  # several chat models may have to be asked before it is the agent's turn
    explore_steps: ClassVar[str] = "max_steps"

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = laid_over(TextarenaParams(), params)
        if not 1 <= self._settings.max_steps <= 1000:
            raise ValueError(f"max_steps={self._settings.max_steps} must be 1 to 1000")
        self._id = TaskId.read(task_id)
        self._match = TextArenaMatch(self._id.game, self._id.seed)
        self._others: dict[int, SeatPlayer] = {
            seat: player_of(
                self._id.others,
                self._id.game,
                seat,
                self._id.seed,
                checkpoint=self._settings.checkpoint,
                system=_RULES,
            )
            for seat in range(self._match.seats)
            if seat != self._id.seat
        }
        self._steps = 0
        self._stop: str | None = None
        self._heard: list[str] = []

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if laid_over(self._settings, params) != self._settings:
            raise ValueError("parameters of textarena must be given when the instance is created")
        if not self._heard:
            self._go_on()
            rules, seen = self._match.hears(self._id.seat)
            told = _OPEN if self._settings.is_open_query else _RULES
            # A game that the others end before the agent has moved is over with its first message.
            self._heard = [f"{told}\n\n{rules}".strip(), seen or "It is your turn."]
        state: list[Message] = [
            {"role": "system", "content": self._heard[0]},
            {"role": "user", "content": self._heard[1]},
        ]
        return {"state": state, "info": {"instance_id": self.instance_id, **self._facts()}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Make the agent's move, then those of the others; raises ValueError if the episode is over, PlayerFailed."""
        if self._stop is not None:
            raise ValueError(f"the episode {self.instance_id!r} is over ({self._stop}); create a new instance")
        if not self._heard:
            self.get_init_state()
        self._steps += 1
        refused = None if self._match.over else self._match.play(str(action.get("content") or ""))
        self._go_on()
        _, seen = self._match.hears(self._id.seat)
        if self._match.over:
            self._stop = "lost_by_rules" if self._match.broke_rules(self._id.seat) else "finished"
            seen = f"{seen}\n{self._verdict()}".strip()
        elif self._match.moves >= MOST_MOVES or self._steps >= self._settings.max_steps:
            self._stop = "max_steps"
            seen = f"{seen}\nThe game is broken off.".strip()
        return {
            "state": [{"role": "user", "content": seen or "It is your turn."}],
            "reward": self.evaluate(params={"sparse": False}) if self._stop is not None else 0.0,
            "is_terminated": self._stop is not None,
            "info": {
                "steps": self._steps,
                "refused": refused or False,
                "finished": self._stop == "finished",
                "answer": None,
                "stop_reason": self._stop,
            },
        }

    def _go_on(self) -> None:
        match = self._match
        while not match.over and match.turn != self._id.seat and match.moves < MOST_MOVES:
            seat = match.turn
            match.play(self._others[seat].move(match, *match.hears(seat)))

    def _verdict(self) -> str:
        own = self._match.outcome.get(self._id.seat, 0.0)
        said = "You won." if own >= 1 else "You lost." if own <= -1 else f"Your outcome is {own:g}, of -1 to 1."
        return f"The game is over. {'It is a draw.' if own == 0 and self._match.seats == 2 else said}"

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade the outcome r of the agent's seat, -1 to 1: with `sparse=False` (r + 1) / 2, else 1.0 for the best
        outcome and 0.0 below. 0.0 for an unfinished or open game."""
        is_sparse = read_flags(params, {"sparse": True})["sparse"]
        outcome = self._match.outcome.get(self._id.seat)
        if self._settings.is_open_query or outcome is None:
            return 0.0
        score = (min(max(outcome, -1.0), 1.0) + 1.0) / 2.0
        return float(score >= 1.0) if is_sparse else score

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return `params["what"]`: "task" (default), "state" (`base.StateInfo`), "legal" (the legal ones of the known
        moves; not for the agent)."""
        asked = dict(params or {})
        what = asked.pop("what", "task")
        if asked or what not in ("task", "tools", "state", "legal"):
            raise ValueError(f"get_info of textarena understands what=task|state|legal; got {params!r}")
        if what == "state":
            match = self._match
            outcome = {str(seat): reward for seat, reward in sorted(match.outcome.items())}
            facts = {"moves": match.moves, "turn": match.turn, "outcome": outcome, "calls": self._steps}
            return {"facts": facts, "answer": None, "finished": self._stop == "finished", "exact": False}
        if what == "legal":
            return [] if self._match.over else list(self._match.legal_moves())
        return self._facts()

    def _facts(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "game": self._id.game,
            "seat": self._id.seat,
            "seats": self._match.seats,
            "others": self._id.others,
            "max_steps": self._settings.max_steps,
            "is_open_query": self._settings.is_open_query,
        }

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, dev or test; see `tasks.task_ids` for `games`, `seeds` and `others`."""
        return task_ids(split, params)


if installed():
    # Instances are forked from the process that has imported this module: the package is loaded for all of them.
    package()

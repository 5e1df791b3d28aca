"""TextWorld as an environment: one message, one command to the parser of a text adventure.

An unknown command costs a step. An episode ends when the game is won or lost or the steps are used up; one without a
goal also with `action: done`. An instance has its own process: the interpreter is C, and making a game starts a
compiler.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from env_service.environments.textworld.frame import ACT, DONE, TextWorldEnv, TextWorldParams, text_tool
from env_service.environments.textworld.games import GameId, game_file, installed, package, task_ids
from env_service.parameters import laid_over

_RULES = """You play a text adventure. A command is a verb with what it is about, in the game's words: look, \
inventory, go north, examine table, open fridge, take key, take key from table, drop key, put key on table, insert \
key into box, unlock door with key, lock door with key, eat apple, cook carrot with stove, slice carrot with knife, \
prepare meal."""


class TextworldEnv(TextWorldEnv):
    """One game; `games.GameId` describes task ids.

    `max_steps` (`TextWorldParams`): 0 for three times the walkthrough plus 10, at least 20. `admissible` lists the
    commands that would change something. Graded by the game: sparse 1.0 if it is won; dense the share of points, or in
    a game of one point the closest approach to the end as a share of the way.
    """

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"
    call_timeout_s: ClassVar[float] = 180.0
    memory_mb: ClassVar[int] = 2048
    world: ClassVar[str] = "textworld"
    rules: ClassVar[str] = _RULES
    longest_command: ClassVar[int] = 100
    act_tool: ClassVar[dict[str, Any]] = text_tool(
        ACT, "Give the game a command.", "command", "for example: go north", required=True
    )
    done_tool: ClassVar[dict[str, Any]] = text_tool(
        DONE, "End the episode.", "answer", "what you found out", required=True
    )
    exact: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        settings = laid_over(TextWorldParams(), params)
        if not 0 <= settings.max_steps <= 1000:
            raise ValueError(f"max_steps={settings.max_steps} must be 0 to 1000")
        self._id = GameId.read(task_id)
        textworld = package()
        wanted = ("admissible_commands", "description", "inventory", "facts", "score", "max_score", "won", "lost")
        infos = textworld.EnvInfos(**dict.fromkeys(wanted, True), policy_commands=True, objective=True)
        self._game = textworld.start(str(game_file(self._id)), infos)
        self._state = self._game.reset()
        self._way = self._best = len(self._state.policy_commands or ())
        super().__init__(task_id, instance_id, params, settings, settings.max_steps or max(20, 3 * self._way + 10))

    def _goal(self) -> str:
        return " ".join(str(self._state.objective).split())

    def _first_sight(self) -> str:
        return str(self._state.description).strip()

    def _forbidden(self, words: str) -> str | None:
        if words.partition(" ")[0].casefold() in _FORBIDDEN or any(mark in words for mark in ".,;!?"):
            return "The game does not take that: one command at a time, and none about the game itself."
        return None

    def _play(self, words: str) -> tuple[str, bool]:
        is_known = words in self._state.admissible_commands
        self._state, _, over = self._game.step(words)
        self._best = min(self._best, len(self._state.policy_commands or ()) if not self._state.lost else self._best)
        if self._state.won:
            self._best = 0
        if over or self._state.won or self._state.lost:
            self._stop = "lost" if self._state.lost else "finished"
        text = _END.sub("", _STATUS.sub("", str(self._state.feedback))).strip()
        return text, not is_known and _is_refusal(text)

    def _commands(self) -> list[str]:
        return list(self._state.admissible_commands)

    def _grade(self, *, sparse: bool) -> float:
        if self._state.won:
            return 1.0
        if sparse:
            return 0.0
        if (self._state.max_score or 0) > 1:
            return float(max(0, self._state.score or 0) / self._state.max_score)
        return max(0.0, 1.0 - self._best / self._way) if self._way else 0.0

    def _state_facts(self) -> dict[str, Any]:
        return {"facts": dict.fromkeys(sorted(map(str, self._state.facts)), True)}

    def _secret(self, what: str) -> Any:
        return list(self._state.policy_commands or ())

    def close(self) -> None:
        self._game.close()

    def _facts(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "kind": self._id.kind,
            "level": self._id.level,
            "max_steps": self._max_steps,
            "is_open_query": self._settings.is_open_query,
        }

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, dev or test; see `games.task_ids` for `kinds`, `levels` and `seeds`."""
        return task_ids(split, params)


_FORBIDDEN = frozenset(
    [
        "save",
        "restore",
        "restart",
        "quit",
        "q",
        "undo",
        "script",
        "transcript",
        "oops",
        "verify",
        "version",
        "again",
        "g",
        "notify",
        "pronouns",
        "abstract",
        "actions",
        "showme",
        "scope",
        "random",
        "trace",
        "tw-trace-actions",
        "tw-extra-infos",
        "tw-print",
        "debug",
        "test",
        "purloin",
        "gonear",
        "rules",
        "goal",
    ]
)
"""Verbs of the interpreter and its debugging, and the one that tells the goal again."""

_STATUS = re.compile(r"\n+ *>? *-= .*? =-\d+/\d+$")
"""The status line, at the end of some answers."""

_END = re.compile(r"\s*\*\*\* .* \*\*\*.*", re.DOTALL)
"""What the interpreter says when a game is over, the offer to begin again among it."""


def _is_refusal(text: str) -> bool:
    return bool(
        re.match(r"(That's not a verb|You can't|I |What do you want|There is|You (?:aren't|need|have to))", text)
    )


if installed():
    # Instances are forked from the process that has imported this module: 2 s for all of them instead of for each.
    package()

"""ScienceWorld as an environment: one message, one command in a house where elementary science works.

An episode ends when the simulator says so or the steps are spent; one without a goal also with `action: done`. Graded
by the simulator's score.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.environments.scienceworld.simulator import Simulator, splits
from env_service.environments.textworld.frame import ACT, DONE, TextWorldEnv, TextWorldParams, text_tool
from env_service.parameters import laid_over

SPLITS = ("train", "dev", "test")
_FORBIDDEN = re.compile(r"\breset\b", re.IGNORECASE)
_REFUSALS = ("No known action", "Ambiguous request", "It's not clear", "I'm not sure", "You can't", "Unknown action")

_RULES = """You are in a house with things that behave as in elementary science. A command is a verb with what it is \
about, in the words of what you see: look around, look at OBJ, look in OBJ, open OBJ, close OBJ, go to PLACE, pick up \
OBJ, put down OBJ, move OBJ to OBJ, pour OBJ in OBJ, dunk OBJ in OBJ, mix OBJ, activate OBJ, deactivate OBJ, use OBJ \
on OBJ, connect OBJ to OBJ, disconnect OBJ, read OBJ, eat OBJ, flush OBJ, focus on OBJ, inventory, task, wait, wait1. \
Focus only on what the task says: a wrong focus fails it. If a command is ambiguous, answer with the number you mean."""


@dataclass(frozen=True, slots=True)
class ScienceworldParams(TextWorldParams):
    """Parameters of `create`, in addition to those of `TextWorldParams`.

    - `max_steps`: commands that an episode may take, 100 in the package.
    - `admissible`: lists hundreds of commands.
    - `simplifications`: the package's simplifications, separated by commas, "easy" for all; "" as published.
    """

    max_steps: int = 100
    simplifications: str = ""


SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "selfWateringFlowerPots",
    "openContainers",
    "openDoors",
    "noElectricalAction",
)


class ScienceworldEnv(TextWorldEnv):
    """One variation of one task; see `ScienceworldParams`. Ids are `TASK.VARIATION`, like `boil.3`.

    Graded by the simulator's score: sparse 1.0 if it is full, dense the score itself, sub-goals included, 0 once the
    task is failed. `get_info` also tells "progress", the table of sub-goals.
    """

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 120.0
    world: ClassVar[str] = "scienceworld"
    rules: ClassVar[str] = _RULES
    example: ClassVar[str] = "look around"
    longest_command: ClassVar[int] = 200
    act_tool: ClassVar[dict[str, Any]] = text_tool(
        ACT, "Carry out a command.", "command", "a verb with what it is about", required=True
    )
    done_tool: ClassVar[dict[str, Any]] = text_tool(
        DONE, "End the episode.", "answer", "what was found", required=False
    )
    exact: ClassVar[bool] = False
    told: ClassVar[tuple[str, ...]] = ("task", "tools", "state", "progress", "walkthrough")

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        settings = laid_over(ScienceworldParams(), params)
        if not 1 <= settings.max_steps <= 1000:
            raise ValueError(f"max_steps={settings.max_steps} must be 1 to 1000")
        super().__init__(task_id, instance_id, params, settings, settings.max_steps)
        self._task, self._variation = read_id(task_id)
        self._easy = _read_simplifications(settings.simplifications, self._task)
        self._game = Simulator.shared().game(self._task, self._variation, self._easy)
        self._score = 0.0

    def _goal(self) -> str:
        return self._game.description()

    def _first_sight(self) -> str:
        return f"{self._game.look()}\n{self._game.inventory()}"

    def _forbidden(self, words: str) -> str | None:
        return "The task cannot be reset." if _FORBIDDEN.search(words) else None

    def _play(self, words: str) -> tuple[str, bool]:
        told = self._game.step(words)
        if not self._settings.is_open_query:
            self._score = self._game.score()
            if self._score < 0:
                self._stop = "failed"
            elif self._game.is_completed():
                self._stop = "finished"
        return told, told.startswith(_REFUSALS)

    def _commands(self) -> list[str]:
        return self._game.valid_actions()

    def _grade(self, *, sparse: bool) -> float:
        share = min(1.0, max(0.0, round(self._score, 2)))
        return float(share == 1.0) if sparse else share

    def _facts(self) -> dict[str, Any]:
        return {"task": self._task, "variation": self._variation, "max_steps": self._max_steps}

    def _step_facts(self) -> dict[str, Any]:
        return {"score": self._score}

    def _state_facts(self) -> dict[str, Any]:
        return {"score": self._score, "look": self._game.look(), "inventory": self._game.inventory()}

    def _secret(self, what: str) -> Any:
        if what == "progress":
            return self._game.progress()
        game = Simulator.shared().game(self._task, self._variation, self._easy, gold=True)
        try:
            return game.gold()
        finally:
            game.close()

    def close(self) -> None:
        self._game.close()

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the ids of a split: of each of `tasks` (all 30) the first `variations` (10; 0 for all)."""
        asked: dict[str, Any] = {"tasks": list(splits()), "variations": 10}
        if unknown := sorted(set(params or {}) - set(asked)):
            raise ValueError(f"unknown parameter {unknown[0]!r} of scienceworld's tasks; known: {', '.join(asked)}")
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}; scienceworld has: {', '.join(SPLITS)}")
        tasks, variations = {**asked, **(params or {})}.values()
        if not isinstance(tasks, list) or not tasks or not all(task in splits() for task in tasks):
            raise ValueError(f"tasks={tasks!r} must be a list with some of: {', '.join(splits())}")
        if type(variations) is not int or variations < 0:
            raise ValueError(f"variations={variations!r} must be a whole number, 0 or more")
        place = SPLITS.index(split)
        found = []
        for task in tasks:
            ends = (0, *splits()[task])
            there = range(ends[place], ends[place + 1])
            found += [f"{task}.{number}" for number in there[: variations or None]]
        return found


def read_id(task_id: str) -> tuple[str, int]:
    task, _, number = task_id.rpartition(".")
    if task not in splits() or not re.fullmatch(r"0|[1-9]\d{0,3}", number) or int(number) >= splits()[task][2]:
        raise ValueError(
            f"there is no ScienceWorld task {task_id[:80]!r}; an id reads like `boil.3`, with a task of "
            f"{', '.join(splits())} and one of its variations"
        )
    return task, int(number)


def _read_simplifications(text: str, task: str) -> str:
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in SIMPLIFICATIONS]:
        raise ValueError(f"simplifications: {unknown[0]!r} must be one of {', '.join(SIMPLIFICATIONS)}")
    if "noElectricalAction" in names and ("power-component" in task or "conductivity" in task):
        raise ValueError(f"{task} needs electrical actions: leave noElectricalAction out of simplifications")
    return ",".join(names)

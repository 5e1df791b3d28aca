"""ScienceWorld as an environment: one message, one command in a house where elementary science works.

The simulator is the package's own. Whatever is written is answered by its parser, and what that does not understand
costs a step and changes nothing. An episode ends when the simulator says so (the task is solved, or failed for good),
or the steps are spent; one without a goal also with `action: done`. Graded by the simulator's score.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.scienceworld.simulator import Simulator, splits
from env_service.parameters import laid_over, read_flags
from env_service.tool_calls import BadCall, ToolCall, answer_to, structured_calls

ACT, DONE = "act", "done"
LONGEST_COMMAND = 200
MOST_CALLS = 64
SPLITS = ("train", "dev", "test")
_ACTION = re.compile(r"^[ \t]*action:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_FORM = "End your message with a line `action: COMMAND`."
_FORBIDDEN = re.compile(r"\breset\b", re.IGNORECASE)
_REFUSALS = ("No known action", "Ambiguous request", "It's not clear", "I'm not sure", "You can't", "Unknown action")

_RULES = """You are in a house with things that behave as in elementary science. A command is a verb with what it is \
about, in the words of what you see: look around, look at OBJ, look in OBJ, open OBJ, close OBJ, go to PLACE, pick up \
OBJ, put down OBJ, move OBJ to OBJ, pour OBJ in OBJ, dunk OBJ in OBJ, mix OBJ, activate OBJ, deactivate OBJ, use OBJ \
on OBJ, connect OBJ to OBJ, disconnect OBJ, read OBJ, eat OBJ, flush OBJ, focus on OBJ, inventory, task, wait, wait1. \
Focus only on what the task says: a wrong focus fails it. If a command is ambiguous, answer with the number you mean."""
_OPEN_GOAL = "There is no goal. Find out what there is and what can be done with it."


@dataclass(frozen=True, slots=True)
class ScienceworldParams:
    """Parameters of `create`.

    - `native_tools`: a command is a call of `act`, and is answered.
    - `is_open_query`: the house without its goal; not graded.
    - `max_steps`: commands that an episode may take, 100 in the package.
    - `admissible`: whether each observation lists the commands that the simulator takes; there are hundreds.
    - `simplifications`: what the package makes easier, separated by commas, "easy" for all; "" as published.
    """

    native_tools: bool = False
    is_open_query: bool = False
    max_steps: int = 100
    admissible: bool = False
    simplifications: str = ""


SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "selfWateringFlowerPots",
    "openContainers",
    "openDoors",
    "noElectricalAction",
)


class ScienceworldEnv(BaseEnv):
    """One variation of one task; see `ScienceworldParams`. Ids are `TASK.VARIATION`, like `boil.3`."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 120.0
    explore_steps: ClassVar[str] = "max_steps"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        """Begin the game; raises ValueError, ScienceworldNotInstalled."""
        super().__init__(task_id, instance_id, params)
        self._settings = laid_over(ScienceworldParams(), params)
        if not 1 <= self._settings.max_steps <= 1000:
            raise ValueError(f"max_steps={self._settings.max_steps} must be 1 to 1000")
        self._task, self._variation = read_id(task_id)
        self._easy = _read_simplifications(self._settings.simplifications, self._task)
        self._game = Simulator.shared().game(self._task, self._variation, self._easy)
        self._steps = 0
        self._score = 0.0
        self._stop: str | None = None
        self._said: str | None = None

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        """Return the rules as system message, the goal and the first look around as the user's."""
        if laid_over(self._settings, params) != self._settings:
            raise ValueError("parameters of scienceworld must be given when the instance is created")
        goal = _OPEN_GOAL if self._settings.is_open_query else self._game.description()
        form = "" if self._settings.native_tools else f" {_FORM}"
        end = " `action: done` ends the episode." if self._settings.is_open_query and form else ""
        system = f"{_RULES}\n\nYou may think first. You have {self._settings.max_steps} commands.{form}{end}"
        seen = self._with_commands(f"{self._game.look()}\n{self._game.inventory()}")
        state: list[Message] = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{goal}\n\n{seen}"},
        ]
        return {"state": state, "info": {"instance_id": self.instance_id, "query": goal, **self._facts()}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Give the message's commands to the simulator; raises ValueError if the episode is over."""
        if self._stop is not None:
            raise ValueError(f"the episode {self.instance_id!r} is over ({self._stop}); create a new instance")
        calls = structured_calls(action) if self._settings.native_tools else []
        state: list[Message] = []
        refused: bool | str = False
        if calls:
            for number, call in enumerate(calls):
                told, problem = "Not carried out: the episode is over.", True
                if number >= MOST_CALLS:
                    told = f"Not carried out: a message may hold {MOST_CALLS} calls."
                elif self._stop is None:
                    told, problem = self._take(self._command_of(call))
                state.append(answer_to(call, told))
                refused = refused or (told if problem else False)
        else:
            told, problem = self._take(self._written(str(action.get("content") or "")))
            state, refused = [{"role": "user", "content": told}], told if problem else False
        return {
            "state": state,
            "reward": self.evaluate() if self._stop is not None else 0.0,
            "is_terminated": self._stop is not None,
            "info": {
                "steps": self._steps,
                "score": self._score,
                "refused": refused,
                "finished": self._stop == "finished",
                "answer": self._said if self._stop == "finished" else None,
                "stop_reason": self._stop,
            },
        }

    def _written(self, text: str) -> str | BadCall:
        """Return the command of the last line `action:` of a text."""
        if self._settings.native_tools:
            return BadCall(f"Call the tool `{ACT}`")
        found = _ACTION.findall(text.rpartition("</think>")[2])
        return found[-1].strip() if found else BadCall(_FORM.rstrip("."))

    def _command_of(self, call: ToolCall | BadCall) -> str | BadCall:
        if isinstance(call, BadCall):
            return call
        if call.name == DONE and self._settings.is_open_query:
            return f"{DONE} {call.arguments.get('answer') or ''}".strip()
        command = call.arguments.get("command")
        if call.name != ACT or set(call.arguments) != {"command"} or not isinstance(command, str):
            return BadCall(f"There is the tool `{ACT}` with one text, `command`")
        return command

    def _take(self, command: str | BadCall) -> tuple[str, bool]:
        """Take one step with a command; returns what is seen, and whether nothing was carried out."""
        self._steps += 1
        told, problem = self._act(command)
        if self._stop is None and self._steps >= self._settings.max_steps:
            self._stop = "max_steps"
        if self._stop is not None:
            told += "\nThe episode is over."
        return told, problem

    def _act(self, command: str | BadCall) -> tuple[str, bool]:
        if isinstance(command, BadCall):
            return f"{command.reason}.", True
        words = " ".join(command.split())
        verb, _, rest = words.partition(" ")
        if self._settings.is_open_query and verb.casefold() == DONE:
            self._stop, self._said = "finished", rest
            return "Done.", False
        if not words or len(words) > LONGEST_COMMAND or not words.isascii() or not words.isprintable():
            return f"A command is a line of at most {LONGEST_COMMAND} ASCII characters.", True
        if _FORBIDDEN.search(words):
            return "The task cannot be reset.", True
        told = self._game.step(words)
        if not self._settings.is_open_query:
            self._score = self._game.score()
            if self._score < 0:
                self._stop = "failed"
            elif self._game.is_completed():
                self._stop = "finished"
        return self._with_commands(told), told.startswith(_REFUSALS)

    def _with_commands(self, text: str) -> str:
        if not self._settings.admissible or self._stop is not None:
            return text
        return f"{text}\n\nYou can: {', '.join(self._game.valid_actions())}."

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade by the simulator's score: sparse (default) 1.0 if it is full, else 0.0; dense (`sparse=False`) the
        score itself, sub-goals included, 0 once the task is failed. An open query scores 0.0."""
        is_sparse = read_flags(params, {"sparse": True})["sparse"]
        if self._settings.is_open_query:
            return 0.0
        share = min(1.0, max(0.0, round(self._score, 2)))
        return float(share == 1.0) if is_sparse else share

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return `params["what"]`: "task" (default), "tools", "state" (`base.StateInfo`), "progress" (the table of
        sub-goals) and "walkthrough", which are not for the agent."""
        asked = dict(params or {})
        what = asked.pop("what", "task")
        if asked or what not in ("task", "tools", "state", "progress", "walkthrough"):
            raise ValueError(
                f"get_info of scienceworld understands what=task|tools|state|progress|walkthrough; got {params!r}"
            )
        if what == "state":
            facts = {"score": self._score, "look": self._game.look(), "inventory": self._game.inventory()}
            is_finished = self._stop == "finished"
            answer = self._said if is_finished else None
            return {"facts": facts, "answer": answer, "finished": is_finished, "exact": False}
        if what == "progress":
            return self._game.progress()
        if what == "walkthrough":
            game = Simulator.shared().game(self._task, self._variation, self._easy, gold=True)
            try:
                return game.gold()
            finally:
                game.close()
        return {**self._facts(), "tools": self.tools()}

    def _facts(self) -> dict[str, Any]:
        return {"task": self._task, "variation": self._variation, "max_steps": self._settings.max_steps}

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return `act`, and `done` where there is no goal."""
        tools = [_tool(ACT, "Carry out a command.", "command", "a verb with what it is about", required=True)]
        if self._settings.is_open_query:
            tools.append(_tool(DONE, "End the episode.", "answer", "what was found", required=False))
        return tools

    def close(self) -> None:
        """Let the game go."""
        self._game.close()

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the ids of a split: of each of `tasks` (all 30) the first `variations` (10; 0 for all). Raises
        ValueError."""
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
    """Return task and variation of an id; raises ValueError."""
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


def _tool(name: str, description: str, argument: str, about: str, *, required: bool) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": about}}
    parameters = {"type": "object", "properties": properties, "required": [argument] if required else []}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}

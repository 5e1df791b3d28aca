"""TextWorld as an environment: one message, one command to the parser of a text adventure.

The game is the package's own, compiled with Inform 7 and run by its interpreter; whatever is written is answered by the
game's parser, and one that it does not understand costs a step and changes nothing. An episode ends when the game is
won or lost or the steps are spent; one without a goal also with `action: done`. Graded by the game: 1 if it is won,
dense the share of the way.

An instance has a process of its own: the interpreter is C, and makes of a game start a compiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.textworld.games import GameId, game_file, installed, package, task_ids
from env_service.parameters import laid_over, read_flags
from env_service.tool_calls import BadCall, ToolCall, answer_to, structured_calls

ACT, DONE = "act", "done"
LONGEST_COMMAND = 100
MOST_CALLS = 64
_ACTION = re.compile(r"^[ \t]*action:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_FORM = "End your message with a line `action: COMMAND`."

_RULES = """You play a text adventure. A command is a verb with what it is about, in the game's words: look, \
inventory, go north, examine table, open fridge, take key, take key from table, drop key, put key on table, insert \
key into box, unlock door with key, lock door with key, eat apple, cook carrot with stove, slice carrot with knife, \
prepare meal."""

_OPEN_GOAL = "There is no goal. Find out what there is and what can be done with it."


@dataclass(frozen=True, slots=True)
class TextworldParams:
    """Parameters of `create`.

    - `native_tools`: a command is a call of `act`, and is answered.
    - `is_open_query`: the world without its goal; not graded.
    - `max_steps`: commands that an episode may take; 0 for three times the walkthrough and 10 more, 20 at least.
    - `admissible`: whether each observation lists the commands that would change something.
    """

    native_tools: bool = False
    is_open_query: bool = False
    max_steps: int = 0
    admissible: bool = False


class TextworldEnv(BaseEnv):
    """One game; see `TextworldParams` for the parameters, `games.GameId` for the task ids."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"
    call_timeout_s: ClassVar[float] = 180.0
    memory_mb: ClassVar[int] = 2048
    explore_steps: ClassVar[str] = "max_steps"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        """Start the game, which is made first if nobody has asked
        for it yet; raises ValueError, TextworldNotInstalled."""
        super().__init__(task_id, instance_id, params)
        self._settings = laid_over(TextworldParams(), params)
        if not 0 <= self._settings.max_steps <= 1000:
            raise ValueError(f"max_steps={self._settings.max_steps} must be 0 to 1000")
        self._id = GameId.read(task_id)
        textworld = package()
        wanted = ("admissible_commands", "description", "inventory", "facts", "score", "max_score", "won", "lost")
        infos = textworld.EnvInfos(**dict.fromkeys(wanted, True), policy_commands=True, objective=True)
        self._game = textworld.start(str(game_file(self._id)), infos)
        self._state = self._game.reset()
        self._way = self._best = len(self._state.policy_commands or ())
        self._max_steps = self._settings.max_steps or max(20, 3 * self._way + 10)
        self._steps = 0
        self._stop: str | None = None
        self._said: str | None = None

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        """Return the rules as system message, the goal and the first room as the user's."""
        if laid_over(self._settings, params) != self._settings:
            raise ValueError("parameters of textworld must be given when the instance is created")
        goal = _OPEN_GOAL if self._settings.is_open_query else " ".join(str(self._state.objective).split())
        form = "" if self._settings.native_tools else f" {_FORM}"
        end = " `action: done` ends the episode." if self._settings.is_open_query and form else ""
        system = f"{_RULES}\n\nYou may think first. You have {self._max_steps} commands.{form}{end}"
        seen = self._with_commands(str(self._state.description).strip())
        state: list[Message] = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{goal}\n\n{seen}"},
        ]
        return {"state": state, "info": {"instance_id": self.instance_id, "query": goal, **self._facts()}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Give the message's commands to the game; raises ValueError if the episode is over."""
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
        if self._stop is None and self._steps >= self._max_steps:
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
        if verb.casefold() in _FORBIDDEN or any(mark in words for mark in ".,;!?"):
            return "The game does not take that: one command at a time, and none about the game itself.", True
        is_known = words in self._state.admissible_commands
        self._state, _, over = self._game.step(words)
        self._best = min(self._best, len(self._state.policy_commands or ()) if not self._state.lost else self._best)
        if self._state.won:
            self._best = 0
        if over or self._state.won or self._state.lost:
            self._stop = "lost" if self._state.lost else "finished"
        text = _END.sub("", _STATUS.sub("", str(self._state.feedback))).strip()
        return self._with_commands(text), not is_known and _is_refusal(text)

    def _with_commands(self, text: str) -> str:
        if not self._settings.admissible or self._stop is not None:
            return text
        return f"{text}\n\nYou can: {', '.join(self._state.admissible_commands)}."

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade by the game: sparse (default) 1.0 if it is won, else 0.0.

        Dense (`sparse=False`): the share of the game's points where it gives more than one, else the share of the
        shortest way that the episode came at its nearest. An open query scores 0.0.
        """
        is_sparse = read_flags(params, {"sparse": True})["sparse"]
        if self._settings.is_open_query:
            return 0.0
        if self._state.won:
            return 1.0
        if is_sparse:
            return 0.0
        if (self._state.max_score or 0) > 1:
            return float(max(0, self._state.score or 0) / self._state.max_score)
        return max(0.0, 1.0 - self._best / self._way) if self._way else 0.0

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return `params["what"]`: "task" (default), "tools", "state" (`base.StateInfo`),
        "walkthrough" (not for the agent)."""
        asked = dict(params or {})
        what = asked.pop("what", "task")
        if asked or what not in ("task", "tools", "state", "walkthrough"):
            raise ValueError(f"get_info of textworld understands what=task|tools|state|walkthrough; got {params!r}")
        if what == "state":
            facts = {"facts": dict.fromkeys(sorted(map(str, self._state.facts)), True)}
            is_finished = self._stop == "finished"
            answer = self._said if is_finished else None
            return {"facts": facts, "answer": answer, "finished": is_finished, "exact": True}
        if what == "walkthrough":
            return list(self._state.policy_commands or ())
        return {**self._facts(), "tools": self.tools()}

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return `act`, and `done` where there is no goal."""
        tools = [_tool(ACT, "Give the game a command.", "command", "for example: go north")]
        if self._settings.is_open_query:
            tools.append(_tool(DONE, "End the episode.", "answer", "what you found out"))
        return tools

    def close(self) -> None:
        """Free the game's interpreter."""
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
    """Whether the parser understood nothing or could not do it."""
    return bool(
        re.match(r"(That's not a verb|You can't|I |What do you want|There is|You (?:aren't|need|have to))", text)
    )


def _tool(name: str, description: str, argument: str, about: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": about}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


if installed():
    # Instances are forked from the process that has imported this module: 2 s for all of them instead of for each.
    package()

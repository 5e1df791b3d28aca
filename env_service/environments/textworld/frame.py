"""A text world as an environment: one message, one command, one answer of the world.

A command is a message's last line `action:`, or a call of `act`. An episode ends when the world says so or the steps
are used up; one without a goal also with `done`.
"""

from __future__ import annotations

import copy
import json
import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from env_service.action_format import tool_call
from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.parameters import laid_over, read_flags
from env_service.tool_calls import BadCall, ToolCall, answer_to, structured_calls

ACT, DONE = "act", "done"
MOST_CALLS = 64
_ACTION = re.compile(r"^[ \t]*action:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_OPEN_GOAL = "There is no goal. Find out what there is and what can be done with it."


@dataclass(frozen=True, slots=True)
class TextWorldParams:
    """Parameters of `create` that each text world has.

    - `native_tools`: a command is a call of `act`, and is answered.
    - `is_open_query`: the world without its goal; not graded.
    - `max_steps`: commands that an episode may take; 0, where a world has it, for its own number.
    - `admissible`: whether each observation lists the commands that the world takes.
    """

    native_tools: bool = False
    is_open_query: bool = False
    max_steps: int = 0
    admissible: bool = False


class TextWorldEnv(BaseEnv):
    """One episode of a text world. A subclass begins its game in `__init__`, and sets `_stop` in `_play` when it ends.
    `rules` go into the system message, `example` is a valid command, `exact` is as in `base.StateInfo`, `told` lists
    further values of `what` for `get_info`."""

    explore_steps: ClassVar[str] = "max_steps"
    native_tools: ClassVar[bool] = True
    world: ClassVar[str]
    rules: ClassVar[str]
    example: ClassVar[str] = "look"
    longest_command: ClassVar[int]
    act_tool: ClassVar[dict[str, Any]]
    done_tool: ClassVar[dict[str, Any]]
    exact: ClassVar[bool]
    told: ClassVar[tuple[str, ...]] = ("task", "tools", "state", "walkthrough")

    def __init__(
        self, task_id: str, instance_id: str, params: dict[str, Any] | None, settings: TextWorldParams, max_steps: int
    ) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = settings
        self._max_steps = max_steps
        self._steps = 0
        self._stop: str | None = None
        self._said: str | None = None

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if laid_over(self._settings, params) != self._settings:
            raise ValueError(f"parameters of {self.world} must be given when the instance is created")
        goal = _OPEN_GOAL if self._settings.is_open_query else self._goal()
        by_text = self._settings.is_open_query and not self._settings.native_tools
        end = "\nThe line `action: done` ends the episode." if by_text else ""
        system = f"{self.rules}\n\nYou have {self._max_steps} commands, one a reply. {self._form()}{end}"
        seen = self._with_commands(self._first_sight())
        state: list[Message] = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{goal}\n\n{seen}"},
        ]
        return {"state": state, "info": {"instance_id": self.instance_id, "query": goal, **self._facts()}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
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
        is_finished = self._stop == "finished"
        return {
            "state": state,
            "reward": self.evaluate() if self._stop is not None else 0.0,
            "is_terminated": self._stop is not None,
            "info": {
                "steps": self._steps,
                **self._step_facts(),
                "refused": refused,
                "finished": is_finished,
                "answer": self._said if is_finished else None,
                "stop_reason": self._stop,
            },
        }

    def _form(self) -> str:
        if self._settings.native_tools:
            example = json.dumps({"command": self.example})
            return f"Make one call of {ACT} a reply, with arguments like {example}, and write nothing else."
        return f"You may think first, in few words. End your reply with one line like this:\naction: {self.example}"

    def _written(self, text: str) -> str | BadCall:
        """Return the command of the last line `action:` of a text."""
        found = _ACTION.findall(text.rpartition("</think>")[2])
        if self._settings.native_tools or not found:
            return BadCall("This reply holds no command")
        return str(found[-1]).strip()

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
        """Take one step; returns the observation, and whether the command was refused."""
        self._steps += 1
        told, problem = self._act(command)
        if self._stop is None and self._steps >= self._max_steps:
            self._stop = "max_steps"
        if self._stop is not None:
            told += "\nThe episode is over."
        return told, problem

    def _act(self, command: str | BadCall) -> tuple[str, bool]:
        if isinstance(command, BadCall):
            return f"{command.reason}. {self._form()}", True
        words = " ".join(command.split())
        verb, _, rest = words.partition(" ")
        if self._settings.is_open_query and verb.casefold() == DONE:
            self._stop, self._said = "finished", rest
            return "Done.", False
        if not words or len(words) > self.longest_command or not words.isascii() or not words.isprintable():
            return f"A command is a line of at most {self.longest_command} ASCII characters. {self._form()}", True
        if (why := self._forbidden(words)) is not None:
            return why, True
        told, problem = self._play(words)
        return self._with_commands(told), problem

    def _with_commands(self, text: str) -> str:
        if not self._settings.admissible or self._stop is not None:
            return text
        return f"{text}\n\nYou can: {', '.join(self._commands())}."

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return the world's grade: `sparse` (default) 0 or 1, else partial; 0.0 for an open query."""
        is_sparse = read_flags(params, {"sparse": True})["sparse"]
        return 0.0 if self._settings.is_open_query else self._grade(sparse=is_sparse)

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return `params["what"]`: "task" (default), "tools", "state" (`base.StateInfo`), or a value in `told`, which
        is not for the agent."""
        asked = dict(params or {})
        what = asked.pop("what", "task")
        if asked or what not in self.told:
            raise ValueError(f"get_info of {self.world} understands what={'|'.join(self.told)}; got {params!r}")
        if what == "state":
            is_finished = self._stop == "finished"
            answer = self._said if is_finished else None
            return {"facts": self._state_facts(), "answer": answer, "finished": is_finished, "exact": self.exact}
        if what in ("task", "tools"):
            return {**self._facts(), "tools": self.tools()}
        return self._secret(what)

    def reference_actions(self) -> list[str] | None:
        """Return the rest of the walkthrough; in an inexact world it is known only at the start."""
        if self._stop is not None or self._settings.is_open_query or (self._steps and not self.exact):
            return None
        commands = self._secret("walkthrough")
        if self._settings.native_tools:
            return [tool_call(ACT, {"command": command}) for command in commands]
        return [f"action: {command}" for command in commands]

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return `act`, and `done` where there is no goal."""
        return copy.deepcopy([self.act_tool, self.done_tool] if self._settings.is_open_query else [self.act_tool])

    @abstractmethod
    def _goal(self) -> str: ...

    @abstractmethod
    def _first_sight(self) -> str:
        """Return the world's first description."""

    def _forbidden(self, words: str) -> str | None:
        """Return why a command is forbidden, or None."""
        return None

    @abstractmethod
    def _play(self, words: str) -> tuple[str, bool]:
        """Send a command to the world; returns the answer, and whether it was refused."""

    @abstractmethod
    def _commands(self) -> list[str]: ...

    @abstractmethod
    def _grade(self, *, sparse: bool) -> float: ...

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """Return the opening's `info` about the task."""

    def _step_facts(self) -> dict[str, Any]:
        return {}

    @abstractmethod
    def _state_facts(self) -> dict[str, Any]: ...

    @abstractmethod
    def _secret(self, what: str) -> Any:
        """Return the walkthrough, or another value in `told`."""


def text_tool(name: str, description: str, argument: str, about: str, *, required: bool) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": about}}
    parameters = {"type": "object", "properties": properties, "required": [argument] if required else []}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}

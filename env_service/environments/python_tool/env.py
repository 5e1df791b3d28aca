"""The "python" environment: solve a maths or code problem with a sandboxed interpreter.

Without a sandbox, `SandboxUnavailable` is raised and no code is run. Only the final answer is graded.
"""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar, Literal

from agentevolver.utils.names import did_you_mean
from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.python_tool import prompts
from env_service.environments.python_tool.actions import (
    Code,
    PythonAnswer,
    PythonNoAction,
    code_of,
    parse,
    parse_native,
)
from env_service.environments.python_tool.checkers import PythonTask, is_correct
from env_service.environments.python_tool.proposed import proposed_task
from env_service.environments.python_tool.sandbox.host import MAX_CODE_BYTES, RunResult, Sandbox
from env_service.environments.python_tool.settings import PythonSettings, read_settings
from env_service.environments.python_tool.tasks import SPLITS, load_tasks
from env_service.parameters import read_flags
from env_service.tool_calls import BadCall, ToolCall, answer_to, structured_calls

_FLAGS = {"is_open_query": False, "native_tools": False, "stateful": True, "sparse": True}
_STEP_BUDGET_S = 60.0
"""Seconds after which no further call of a message is run."""

_spare: tuple[int, Sandbox] | None = None
"""A sandbox started by `warm_up`, and the process that started it."""


def _said(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _start(settings: PythonSettings) -> Sandbox:
    global _spare
    if _spare is not None:
        owner, sandbox = _spare
        _spare = None
        if owner == os.getpid():
            if sandbox.is_alive() and sandbox.limits == settings.limits and sandbox.packages == settings.package_paths:
                return sandbox
            sandbox.close()
    return Sandbox(settings.limits, settings.package_paths)


class PythonEnv(BaseEnv):
    """One problem and one interpreter. Parameters: `is_open_query`, `native_tools`, `stateful` (false: each run starts
    anew), `sparse`, and `problem`: a proposed question and answer (`proposed.proposed_task`) in place of a listed
    task."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"
    call_timeout_s: ClassVar[float] = 90.0
    memory_mb: ClassVar[int] = 0  # the interpreter has a limit of its own, which this one would silently lower
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        given = dict(params or {})
        self._problem = given.pop("problem", None)
        self._flags = read_flags(given, _FLAGS)
        self._settings = read_settings()
        self._task = self._listed(task_id) if self._problem is None else proposed_task(task_id, self._problem)
        self._answer: str | None = None
        self._grade: float | None = None
        self._counts = {"steps": 0, "calls": 0, "errors": 0, "timeouts": 0, "restarts": 0}
        self._sandbox = _start(self._settings)

    def _listed(self, task_id: str) -> PythonTask:
        tasks = load_tasks(self._settings.task_files)
        if task_id not in tasks:
            hint = did_you_mean(task_id, tasks, before="; ")
            raise ValueError(f"unknown task {task_id!r} of the python environment{hint}")
        return tasks[task_id]

    @classmethod
    def warm_up(cls) -> None:
        """Build one sandbox ahead (50 ms) for the next instance of this process."""
        global _spare
        if _spare is None or _spare[0] != os.getpid():
            settings = read_settings()
            load_tasks(settings.task_files)
            _spare = os.getpid(), Sandbox(settings.limits, settings.package_paths)

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        given = dict(params or {})
        if given.pop("problem", self._problem) != self._problem:
            raise ValueError("`problem` must be given when the instance is created")
        self._flags = read_flags(given, self._flags)
        self._sandbox.wait_ready()
        query = prompts.OPEN_QUERY if self._flags["is_open_query"] else self._task.question
        flags = self._flags
        system = prompts.system_prompt(self._settings, stateful=flags["stateful"], native=flags["native_tools"])
        facts = {"query": query, "family": self._task.family, "level": self._task.level, "checker": self._task.checker}
        return {
            "state": [{"role": "system", "content": system}, {"role": "user", "content": query}],
            "info": {
                "instance_id": self.instance_id,
                "task_id": self.task_id,
                "is_open_query": self._flags["is_open_query"],
                **facts,
            },
        }

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Run the message's code, or take its answer and end the episode; with native tools, run all of its calls.
        `info`: `status` (ok, error, timeout, output_limit, died, no_action, answered), `refused`, `finished`,
        `answer`, counts, `wall_s` of a run. Raises SandboxUnavailable."""
        if self._answer is not None:
            raise ValueError(f"the episode of task {self.task_id!r} is over; create a new instance")
        self._counts["steps"] += 1
        asked = parse_native(action) if self._flags["native_tools"] else parse(action)
        if isinstance(asked, PythonAnswer):
            self._answer = asked.text
            return self._reply(_said("The answer was taken."), "answered", reward=self.evaluate(), over=True)
        if isinstance(asked, list):
            return self._run_calls(asked)
        text, facts = self._run(asked)
        calls = structured_calls(action)
        return self._reply([answer_to(calls[0], text)] if calls else _said(text), **facts)

    def _run(self, asked: Code | PythonNoAction) -> tuple[str, dict[str, Any]]:
        """Run code; returns the observation and its keys of `info`."""
        if isinstance(asked, Code) and len(asked.source.encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
            asked = PythonNoAction(f"The code is longer than the {MAX_CODE_BYTES} bytes allowed.", asked.style)
        if isinstance(asked, PythonNoAction):
            return prompts.framed(asked.reason, asked.style), {"status": "no_action", "refused": asked.reason}
        lost = self._revive()
        result = self._sandbox.run(asked.source)
        text = prompts.observation(asked, result, self._settings.limits, lost_before=lost)
        self._account(result)
        return text, {"status": result.status, "wall_s": round(result.wall_s, 4), "refused": result.status != "ok"}

    def _run_calls(self, calls: list[ToolCall | BadCall]) -> StepResult:
        """Run each call's code until the time is used up; `info` describes the first refused call, else the last."""
        state: list[Message] = []
        told: dict[str, Any] = {}
        deadline = time.monotonic() + min(_STEP_BUDGET_S, self.call_timeout_s - self._settings.limits.wall_s)
        for call in calls:
            asked = code_of(call, "structured")
            if state and time.monotonic() >= deadline:
                asked = PythonNoAction("Not run: the time for the calls of one message is used up.", "structured")
            text, facts = self._run(asked)
            state.append(answer_to(call, text))
            told = told if told.get("refused") else facts
        return self._reply(state, **told)

    def _revive(self) -> bool:
        """Replace an interpreter that died since the last run; return whether it had."""
        if self._sandbox.is_alive():
            return False
        self._replace()
        return True

    def _replace(self) -> None:
        self._sandbox.close()
        self._sandbox = Sandbox(self._settings.limits, self._settings.package_paths)
        self._counts["restarts"] += 1

    def _account(self, result: RunResult) -> None:
        self._counts["calls"] += 1
        self._counts["errors"] += result.status == "error"
        self._counts["timeouts"] += result.status == "timeout"
        if not result.alive:
            self._replace()
        elif not self._flags["stateful"]:
            self._sandbox.close()
            self._sandbox = Sandbox(self._settings.limits, self._settings.package_paths)

    def _reply(self, state: list[Message], status: str, *, reward: float = 0.0, over: bool = False,
               **facts: Any) -> StepResult:  # fmt: skip
        return {
            "state": state,
            "reward": reward,
            "is_terminated": over,
            "info": {
                "status": status,
                **self._counts,
                "refused": False,
                "finished": over,
                "answer": self._answer,
                **facts,
            },
        }

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return 1 if the answer given to `step` is right, else 0; 0 without a task or a reference answer."""
        read_flags(params, self._flags)
        if self._answer is None or self._flags["is_open_query"] or not self._task.answer:
            return 0.0
        if self._grade is None:
            self._grade = float(is_correct(self._task, self._answer))
        return self._grade

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the tool's schema, limits, packages and counts, or with `what` "state" the state (`base.StateInfo`).
        Its facts count the runs, except in an open query."""
        options = dict(params or {})
        what = options.pop("what", "tools")
        if options or what not in ("tools", "state"):
            raise ValueError(f"get_info of the python environment knows only `what`, tools or state; got {params!r}")
        if what == "state":
            facts = {} if self._flags["is_open_query"] else {"calls": self._counts["calls"]}
            return {"facts": facts, "answer": self._answer, "finished": self._answer is not None, "exact": True}
        return {
            "tools": [prompts.tool_schema()],
            "limits": self._settings.limits.to_dict(),
            "packages": list(self._settings.packages),
            "counts": dict(self._counts),
        }

    def close(self) -> None:
        self._sandbox.close()

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the ids of train, dev or test, in file order; `level` (1 to 4) and `family` narrow the list."""
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r} of the python environment; use one of {', '.join(SPLITS)}")
        filters = dict(params or {})
        for name, kind in (("level", int), ("family", str)):
            if name in filters and type(filters[name]) is not kind:
                raise ValueError(f"parameter {name}={filters[name]!r} must be of type {kind.__name__}")
        if unknown := sorted(set(filters) - {"level", "family"}):
            raise ValueError(f"unknown parameter {unknown[0]!r}; known: level, family")
        tasks = load_tasks(read_settings().task_files).values()
        return [
            task.id
            for task in tasks
            if task.split == split and all(getattr(task, key) == value for key, value in filters.items())
        ]

"""The world calc: work out a chain of opaque operators with a calculator that knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.action_format import tool_call
from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.calc.actions import (
    TOOL_NAME,
    WHAT_TO_CALL,
    WHAT_TO_WRITE,
    Action,
    CalcAnswer,
    CalcCall,
    CalcNoAction,
    call_of,
    parse,
)
from env_service.environments.calc.grammar import QuestionError, apply, evaluate, parse_question, solution
from env_service.environments.calc.prompts import opening, refusal, result, tool_schema
from env_service.environments.calc.tasks import question_of, task_ids
from env_service.parameters import laid_over
from env_service.problem import Problem, read_problem
from env_service.tool_calls import answer_to, structured_calls

LONGEST_PROGRAM = 200
_RUN = "run"


@dataclass(frozen=True, slots=True)
class CalcParams:
    """Parameters of `create`; README.md describes them."""

    problem: dict[str, Any] | None = None
    reference: bool = False
    max_steps: int = 12
    verbose: bool = False
    native_tools: bool = False
    is_open_query: bool = False
    sparse: bool = True

    def updated(self, params: dict[str, Any] | None) -> CalcParams:
        made = laid_over(self, params, {"problem": dict})
        if not 1 <= made.max_steps <= 1000:
            raise ValueError(f"max_steps={made.max_steps} must be from 1 to 1000")
        return made


class CalcEnv(BaseEnv):
    """One question and a calculator; see `CalcParams`."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 10.0
    explore_steps: ClassVar[str] = "max_steps"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = CalcParams().updated(params)
        if self._settings.problem is not None:
            self._problem = read_problem(self._settings.problem)
        elif self._settings.reference:
            self._problem = Problem("")
        else:
            question = str(question_of(task_id))
            self._problem = Problem(question, evaluate(question))
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self._calls = 0
        self._answer: str | None = None
        self._ran = False

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        before, self._settings = self._settings, self._settings.updated(params)
        if (before.problem, before.reference) != (self._settings.problem, self._settings.reference):
            raise ValueError("`problem` and `reference` must be given when the instance is created")
        self._begin()
        chosen = self._settings
        if chosen.reference:
            state: list[Message] = [{"role": "user", "content": f"{_RUN} <program>"}]
        else:
            question = None if chosen.is_open_query else self._problem.question
            state = opening(question, verbose=chosen.verbose, native=chosen.native_tools)
        facts = {"max_steps": chosen.max_steps, "is_open_query": chosen.is_open_query}
        return {
            "state": state,
            "info": {
                "query": state[-1]["content"],
                "instance_id": self.instance_id,
                "task_id": self.task_id,
                **facts,
            },
        }

    @property
    def is_over(self) -> bool:
        return self._answer is not None or self._ran or self._steps >= self._settings.max_steps

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Carry out the call of a message, or take its answer; with native tools all calls, each a step. `info`: steps,
        calls, `refused`, `finished`, `answer`, `stop_reason` (finished, max_steps or None)."""
        if self.is_over:
            raise ValueError(f"the episode of task {self.task_id!r} is over; create a new instance")
        if self._settings.reference:
            state, refused = self._run_program(str(action.get("content") or ""))
        elif self._settings.native_tools:
            state, refused = self._answer_natively(action)
        else:
            text, refused = self._take(parse(str(action.get("content") or "")))
            state = [{"role": "user", "content": text}]
        return self._result(state, refused)

    def _result(self, state: list[Message], refused: bool) -> StepResult:
        finished = self._answer is not None
        return {
            "state": state,
            "reward": self.evaluate() if self.is_over else 0.0,
            "is_terminated": self.is_over,
            "info": {
                "steps": self._steps,
                "calls": self._calls,
                "refused": refused,
                "finished": finished,
                "answer": self._answer,
                "stop_reason": "finished" if finished or self._ran else "max_steps" if self.is_over else None,
            },
        }

    def _take(self, asked: Action) -> tuple[str, bool]:
        """Carry out one action; returns the observation, and whether it was refused."""
        self._steps += 1
        match asked:
            case CalcCall(first, operator, second):
                self._calls += 1
                value = apply(operator, first, second)
                return result(first, operator, second, value) if self._settings.verbose else str(value), False
            case CalcAnswer(text):
                self._answer = text
                return "ok", False
            case CalcNoAction(reason):
                chosen = self._settings
                return refusal(reason, native=chosen.native_tools) if chosen.verbose else f"err {reason}", True

    def _answer_natively(self, action: Message) -> tuple[list[Message], bool]:
        calls = structured_calls(action)
        if not calls:
            asked = parse(str(action.get("content") or ""))
            if isinstance(asked, CalcCall) or asked == CalcNoAction(WHAT_TO_WRITE):
                asked = CalcNoAction(WHAT_TO_CALL)
            text, refused = self._take(asked)
            return [{"role": "user", "content": text}], refused
        state, any_refused = list[Message](), False
        for call in calls:
            text, refused = "err the episode is over", True
            if not self.is_over:
                text, refused = self._take(call_of(call))
            state.append(answer_to(call, text))
            any_refused |= refused
        return state, any_refused

    def _run_program(self, text: str) -> tuple[list[Message], bool]:
        self._steps += 1
        self._ran = True
        word, _, program = text.strip().partition(" ")
        try:
            if word != _RUN:
                raise QuestionError(f"write {_RUN} <program>")
            if len(program) > LONGEST_PROGRAM:
                raise QuestionError(f"{len(program)} characters are more than the {LONGEST_PROGRAM} of a program")
            self._answer = evaluate(program)
        except QuestionError as error:
            return [{"role": "user", "content": f"err {error}"}], True
        return [{"role": "user", "content": self._answer}], False

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return 1 if the answer given to `step` is right, else 0; 0 without a task or a known answer."""
        chosen = self._settings.updated(params)
        if self._answer is None or chosen.is_open_query or chosen.reference or self._problem.answer is None:
            return 0.0
        return float(self._answer == self._problem.answer.strip())

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the tool's schema under `tools`, or with `what` "state" the state (`base.StateInfo`). Its facts count
        the calls, except in an open query."""
        options = dict(params or {})
        what = options.pop("what", "tools")
        if options or what not in ("tools", "state"):
            raise ValueError(f"get_info of calc understands what=tools or what=state; got {params!r}")
        if what == "tools":
            return {"tools": [tool_schema()]}
        facts = {} if self._settings.is_open_query else {"calls": self._calls}
        return {"facts": facts, "answer": self._answer, "finished": self._answer is not None, "exact": True}

    def reference_actions(self) -> list[str] | None:
        if self._steps or self._problem.answer is None or self._settings.is_open_query:
            return None
        steps = solution(parse_question(self._problem.question))
        if self._settings.native_tools:
            calls = [tool_call(TOOL_NAME, {"a": one.first, "op": one.operator, "b": one.second}) for one in steps]
        else:
            calls = [f"{TOOL_NAME} {one.first} {one.operator} {one.second}" for one in steps]
        return [*calls, f"answer {self._problem.answer}"]

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, dev or test; `level`, `levels` and `family` narrow the list."""
        return task_ids(split, params)

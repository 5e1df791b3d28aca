"""The BFCL v3 multi-turn environment: a user with several requests, simulated APIs, and the benchmark's verdict.

A message with calls is answered with their results; one without a call ends the turn. A malformed call counts as a
step, not as a call. Too many steps in a turn end the episode unsolved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from env_service.action_format import tool_call
from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.bfcl import prompts
from env_service.environments.bfcl.backend import BfclBackend, is_error, printable
from env_service.environments.bfcl.calls import (
    MAX_CALLS_PER_MESSAGE,
    BfclCall,
    Malformed,
    of_structured,
    parse_action,
    parse_reference,
    too_many,
)
from env_service.environments.bfcl.grading import Referee
from env_service.environments.bfcl.package import BfclPackage, BfclTask, ToolDoc, load_package
from env_service.environments.bfcl.splits import check_names, read_count, read_flag, split_task_ids
from env_service.feedback import FEEDBACK, read_feedback, told
from env_service.tool_calls import answer_to, structured_calls, tool_responses

MAX_STEPS_PER_TURN = 20
"""The benchmark's limit on messages with calls in one turn."""

MAX_STEPS_OF_OPEN_QUERY = 64
_CREATE_PARAMS = ("is_open_query", "max_steps_per_turn", "native_tools", FEEDBACK)
_CANNOT = "That cannot be done with these functions."
_INFO_KINDS = ("task", "tools", "state", "report")


class BfclEnv(BaseEnv):
    """One conversation of one BFCL multi-turn task.

    Parameters of `create`: `is_open_query` (no requests: the first answer without a call ends it; not graded),
    `max_steps_per_turn` (20, as in the benchmark), `native_tools` (functions that a turn adds come in `info["tools"]`),
    `feedback` (`env_service.feedback`; the verdict reads the plain results).
    """

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 30.0
    explore_steps: ClassVar[str] = "max_steps_per_turn"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        check_names(self.params, _CREATE_PARAMS, "create")
        self._open = read_flag(self.params, "is_open_query", False)
        self._native = read_flag(self.params, "native_tools", False)
        self._feedback = read_feedback(self.params.get(FEEDBACK, "plain"))
        default_steps = MAX_STEPS_OF_OPEN_QUERY if self._open else MAX_STEPS_PER_TURN
        self._max_steps = read_count(self.params, "max_steps_per_turn", default_steps, largest=1000)
        self._package: BfclPackage = load_package()
        if task_id not in self._package.tasks:
            raise ValueError(f"there is no BFCL multi-turn task {task_id!r}; an id reads like `multi_turn_base_0`")
        self._task: BfclTask = self._package.tasks[task_id]
        self._agent = BfclBackend(self._task, self._package)
        self._referee = Referee(self._task, self._package)
        self._results: list[str] = []
        self._turn = 0
        self._steps_this_turn = 0
        self._calls_this_turn = 0
        self._stop: str | None = None
        self._said: str | None = None

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        asked = dict(params or {})
        check_names(asked, _CREATE_PARAMS, "create")
        if read_flag(asked, "is_open_query", self._open) != self._open:
            raise ValueError("`is_open_query` must be given when the instance is created")
        tools = self._tools()
        request = prompts.open_request(tools) if self._open else str(self._task.questions[0])
        system = prompts.system_prompt(tools, native=self._native)
        return {
            "state": [
                {"role": "system", "content": system},
                {"role": "user", "content": request},
            ],
            "info": {"instance_id": self.instance_id, "query": request, **self._facts()},
        }

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        if self._stop is not None:
            raise ValueError(f"the episode {self.instance_id!r} is over ({self._stop}); release it and create another")
        found = self._read(action)
        if not found:
            self._said = (action.get("content") or "").rpartition("</think>")[2].strip()
            return self._end_turn()
        results = []
        for item in found:
            if isinstance(item, BfclCall):
                results.append(self._agent.call(item))
                self._results.append(results[-1])
                self._calls_this_turn += 1
            else:
                results.append(
                    prompts.malformed_result(item.reason, prompts.example_call(self._tools(), native=self._native))
                )
        self._steps_this_turn += 1
        if self._steps_this_turn > self._max_steps:
            self._stop = "max_steps_per_turn"
        shown = [self._explained(item, text) for item, text in zip(found, results, strict=True)]
        readable = sum(isinstance(item, BfclCall) for item in found)
        refused = next(
            (
                text
                for item, text in zip(found, results, strict=True)
                if not isinstance(item, BfclCall) or is_error(text)
            ),
            False,
        )
        state: list[Message]
        if self._native:
            asked = structured_calls(action)
            state = [answer_to(call, printable(text)) for call, text in zip(asked, shown, strict=True)]
        else:
            state = _said(printable(tool_responses(shown)))
        return self._answer(state, calls=readable, malformed=len(found) - readable, refused=refused)

    def _read(self, action: Message) -> list[BfclCall | Malformed]:
        if not self._native:
            return parse_action(action)
        calls = structured_calls(action)
        if len(calls) > MAX_CALLS_PER_MESSAGE:
            return [too_many(len(calls))] * len(calls)
        return [of_structured(call) for call in calls]

    def _explained(self, item: BfclCall | Malformed, result: str) -> str:
        if self._feedback == "plain" or (isinstance(item, BfclCall) and not is_error(result)):
            return result
        name = item.name if isinstance(item, BfclCall) else ""
        schema = next((prompts.tool_schema(doc) for doc in self._tools() if doc["name"] == name), None)
        usage = json.dumps(schema["function"]) if schema is not None else "call one of the functions on offer"
        again = "correct the arguments and call it again, or look up what they should be first"
        return told(result, self._feedback, usage=usage, next_step=again)

    def _end_turn(self) -> StepResult:
        if self._open:
            self._stop = "finished"
            return self._answer(_said(prompts.COMPLETED))
        self._referee.close_turn(self._agent, self._results, self._calls_this_turn)
        self._turn += 1
        self._steps_this_turn = self._calls_this_turn = 0
        if self._turn == len(self._task.questions):
            self._stop = "finished"
            return self._answer(_said(prompts.COMPLETED))
        question = self._task.questions[self._turn]
        added = self._task.held_out.get(self._turn, ())
        if question is None:
            sentence = self._package.additional_functions_prompt
            question = sentence if self._native else prompts.added_functions(added, sentence)
        answer = self._answer(_said(question))
        if added and self._native:
            answer["info"]["tools"] = self.tools()
        return answer

    def _answer(
        self, state: list[Message], calls: int = 0, malformed: int = 0, refused: bool | str = False
    ) -> StepResult:
        done = self._stop is not None
        is_finished = self._stop == "finished"
        return {
            "state": state,
            "reward": float(done and not self._open and self._referee.solved(irrelevance=True)),
            "is_terminated": done,
            "info": {
                "turn": self._turn,
                "calls": calls,
                "malformed_calls": malformed,
                "refused": printable(refused) if isinstance(refused, str) else refused,
                "finished": is_finished,
                "answer": printable(self._said) if is_finished and self._said is not None else None,
                "stop_reason": self._stop,
            },
        }

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade the executed calls: 1.0 if every turn passed, or with `sparse=False` the share of turns.
        `irrelevance=False` leaves that check out, as the package's leaderboard does. An open query scores 0.0."""
        options = dict(params or {})
        check_names(options, ("sparse", "irrelevance"), "evaluate")
        sparse, irrelevance = read_flag(options, "sparse", True), read_flag(options, "irrelevance", True)
        if self._open:
            return 0.0
        return float(self._referee.solved(irrelevance)) if sparse else self._referee.share(irrelevance)

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return `params["what"]`: "task" or "tools" (default; facts and tool schemas),
        "state" (`base.StateInfo`), "report" (verdicts)."""
        options = dict(params or {})
        check_names(options, ("what",), "get_info")
        what = options.get("what", "task")
        if what in ("task", "tools"):
            return {**self._facts(), "tools": [prompts.tool_schema(doc) for doc in self._tools()]}
        if what == "state":
            return self._state()
        if what == "report":
            return self._report()
        raise ValueError(f"`what` is {what!r}; it can be: {', '.join(_INFO_KINDS)}")

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        return [prompts.native_schema(doc) for doc in self._tools()]

    def _state(self) -> dict[str, Any]:
        """Return the state of the APIs and the last message; answers are prose."""
        is_finished = self._stop == "finished"
        answer = printable(self._said) if is_finished and self._said is not None else None
        return {"facts": self.snapshot(), "answer": answer, "finished": is_finished, "exact": True, "prose": True}

    def snapshot(self) -> dict[str, Any]:
        """Return the APIs' states by class as JSON-ready data; equal for equal states."""
        return self._agent.snapshot()

    def reference_actions(self) -> list[str] | None:
        if self._open or self._turn or self._steps_this_turn:
            return None
        actions = []
        for turn in self._task.truth:
            calls = [self._agent.named(parse_reference(text)) for text in turn]
            actions += [*(tool_call(call.name, dict(call.arguments)) for call in calls), "Done." if calls else _CANNOT]
        return actions

    def _tools(self) -> list[ToolDoc]:
        """Return the tools of this turn: all for an open query, else without those of later turns."""
        added = [
            doc
            for turn, docs in sorted(self._task.held_out.items())
            if self._open or turn <= self._turn
            for doc in docs
        ]
        return [*self._task.tools, *added]

    def _facts(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "category": self._task.category,
            "scenario": self._task.scenario,
            "involved_classes": list(self._task.involved_classes),
            "turns": len(self._task.questions),
            "is_open_query": self._open,
        }

    def _report(self) -> dict[str, Any]:
        verdicts = [{"error_type": verdict.error_type, "detail": verdict.detail} for verdict in self._referee.verdicts]
        scores: Mapping[str, Any] = {
            "solved": self._referee.solved(irrelevance=True),
            "solved_without_irrelevance_check": self._referee.solved(irrelevance=False),
        }
        return {
            **self._facts(),
            "turn": self._turn,
            "stop_reason": self._stop,
            "calls": len(self._results),
            "verdicts": verdicts,
            **scores,
        }

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of a split: train, val, test (cut by scenario) or full;
        see `splits` for `categories` and `split_by`."""
        return split_task_ids(load_package().tasks, split, params)


def _said(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]

"""tau2-bench as an environment: a customer with a request, a company's tools and policy, and the benchmark's verdict.

A message with calls is answered with their results; one without a call goes to the customer. The customer ends the
episode, or with `user: solo` the agent by the tool `done`. Ten failed calls, or `max_steps` messages, abort the
episode, which is graded 0. Instances share a process; each has its own database.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.tau2 import prompts
from env_service.environments.tau2.calls import read_calls, too_hard
from env_service.environments.tau2.database import new_environment, set_initial_state
from env_service.environments.tau2.grading import Tau2Check, checks, end_state
from env_service.environments.tau2.package import DOMAINS, module, task_ids, task_of
from env_service.environments.tau2.users import MOST_CALLS, User, UserFailed, first_message, user_of
from env_service.parameters import laid_over, read_flags
from env_service.tool_calls import BadCall, ToolCall, answer_to, tool_responses

_LARGEST = 1000


@dataclass(frozen=True, slots=True)
class Tau2Params:
    """Parameters of `create`.

    - `user`: `scripted` (offline, for tests; never for published numbers), `llm` (`users.UserEndpoint`), `solo`
        (telecom only: the ticket holds the request, the agent uses the customer's phone).
    - `native_tools`: calls come in `tool_calls` alone, and each is answered.
    - `is_open_query`: the task's systems without its request; not graded.
    - `max_steps`: assistant messages in an episode; the benchmark limits the messages of all sides to 200.
    - `max_errors`: failed calls of agent and customer that abort the episode; 0 for no limit.
    """

    user: str = "scripted"
    native_tools: bool = False
    is_open_query: bool = False
    max_steps: int = 100
    max_errors: int = 10


class Tau2Env(BaseEnv):
    """One conversation of one task; see `Tau2Params` for the parameters."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 240.0
    explore_steps: ClassVar[str] = "max_steps"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = laid_over(Tau2Params(), params)
        if not 1 <= self._settings.max_steps <= _LARGEST or not 0 <= self._settings.max_errors <= _LARGEST:
            raise ValueError(f"max_steps must be 1 to {_LARGEST}, max_errors 0 to {_LARGEST}; got {self._settings}")
        self._domain, self._task = task_of(task_id)
        user = user_of(self._settings.user, self._domain, self._task)
        self._user: User | None = None if self._settings.is_open_query else user
        self._is_solo = user is None
        self._environment = new_environment(self._domain, solo=self._is_solo)
        set_initial_state(self._environment, self._task)
        self._begun = False
        self._messages = module("data_model.message")
        self.trajectory: list[Any] = []
        """The episode in the package's messages, as its own evaluator takes them."""
        self._steps = self._errors = self._calls = 0
        self._stop: str | None = None
        self._said: str | None = None

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if laid_over(self._settings, params) != self._settings:
            raise ValueError("parameters of tau2 must be given when the instance is created")
        if self._begun:
            raise ValueError(f"the episode {self.instance_id!r} has begun; create another")
        self._begun = True
        if self._settings.is_open_query:
            request = prompts.open_request(self._domain)
        elif self._user is None:
            request = str(self._task.ticket)
        else:
            self._record("AssistantMessage", content=prompts.GREETING)
            request = first_message(self._user)
            self._record("UserMessage", content=request)
        tools = None if self._settings.native_tools else self.tools()
        system = prompts.system_prompt(self._domain, solo=self._is_solo, tools=tools)
        state: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": request}]
        return {"state": state, "info": {"instance_id": self.instance_id, "query": request, **self._facts()}}

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Carry out the message's calls, or give it to the customer; raises ValueError after the end, UserFailed if the
        customer's model fails."""
        if self._stop is not None:
            raise ValueError(f"the episode {self.instance_id!r} is over ({self._stop}); create a new instance")
        self._steps += 1
        text, calls = read_calls(action, native=self._settings.native_tools)
        refused: bool | str = False
        if calls:
            state, refused = self._carry_out(text, calls)
        elif self._settings.is_open_query:
            self._stop, self._said = "finished", text
            state = [_to_agent(prompts.ENDED)]
        elif not text:
            refused = prompts.EMPTY
            self._errors += 1
            state = [_to_agent(prompts.EMPTY)]
        else:
            state = [_to_agent(self._talk(text))]
        self._limit()
        return self._reply(state, len(calls), refused)

    def _carry_out(self, text: str, calls: list[ToolCall | BadCall]) -> tuple[list[Message], bool | str]:
        """Return the answers to a message's calls, and the first error or False; `done` ends an episode without a
        customer."""
        if self._is_solo and any(call.name == prompts.DONE for call in calls):
            # As in the benchmark: whatever else such a message calls is not carried out.
            self._stop = "finished"
            self._record("AssistantMessage", content=prompts.STOP)
            results = [(prompts.ENDED, False)] * len(calls)
        else:
            readable = [(call, self._package_call(call, "assistant")) for call in calls if isinstance(call, ToolCall)]
            if readable:
                self._record("AssistantMessage", content=text or None, tool_calls=[made for _, made in readable])
            answers = iter([self._call(made) for _, made in readable])
            results = [next(answers) if isinstance(call, ToolCall) else (_unread(call), True) for call in calls]
            self._errors += sum(isinstance(call, BadCall) for call in calls)
        refused = next((said for said, is_error in results if is_error), False)
        if self._settings.native_tools:
            return [answer_to(call, said) for call, (said, _) in zip(calls, results, strict=True)], refused
        return [_to_agent(tool_responses(said for said, _ in results))], refused

    def _talk(self, text: str) -> str:
        """Give a text to the customer and return the reply. Without a customer, the text ends the episode."""
        self._said = text
        self._record("AssistantMessage", content=text)
        if self._user is None:
            self._stop = "finished" if prompts.STOP in text else "agent_error"
            return prompts.ENDED
        turn = self._user.hears(text)
        for _ in range(MOST_CALLS):
            if not turn.calls:
                break
            made = [self._package_call(call, "user") for call in turn.calls]
            self._record("UserMessage", content=None, tool_calls=made)
            turn = self._user.sees([self._call(call)[0] for call in made])
        else:
            raise UserFailed(f"the customer called tools {MOST_CALLS} times without a word")
        self._record("UserMessage", content=turn.content)
        if turn.ends:
            self._stop = "finished"
        return turn.content

    def _package_call(self, call: ToolCall, requestor: str) -> Any:
        self._calls += 1
        return self._messages.ToolCall(
            id=f"call_{self._calls}", name=call.name, arguments=copy.deepcopy(call.arguments), requestor=requestor
        )

    def _call(self, call: Any) -> tuple[str, bool]:
        """Carry out a call in the package; returns the result and whether it is an error."""
        refusal = too_hard(call.name, call.arguments)
        if refusal is None:
            answer = self._environment.get_response(call.model_copy(deep=True))
            text, is_error = str(answer.content), answer.error
        else:
            text, is_error = refusal, True
        text = text.encode("utf-8", "replace").decode()
        self._errors += is_error
        self.trajectory.append(
            self._messages.ToolMessage(id=call.id, role="tool", content=text, requestor=call.requestor, error=is_error)
        )
        return text, is_error

    def _record(self, kind: str, **fields: Any) -> None:
        role = "assistant" if kind == "AssistantMessage" else "user"
        self.trajectory.append(getattr(self._messages, kind)(role=role, **fields))

    def _limit(self) -> None:
        if self._stop is not None:
            return
        if 0 < self._settings.max_errors <= self._errors and not self._settings.is_open_query:
            self._stop = "max_errors"
        elif self._steps >= self._settings.max_steps:
            self._stop = "max_steps"

    def _reply(self, state: list[Message], calls: int, refused: bool | str) -> StepResult:
        is_over = self._stop is not None
        is_finished = self._stop == "finished"
        return {
            "state": state,
            "reward": self.evaluate() if is_over else 0.0,
            "is_terminated": is_over,
            "info": {
                "calls": calls,
                "errors": self._errors,
                "refused": refused,
                "finished": is_finished,
                "answer": self._said if is_finished else None,
                "stop_reason": self._stop,
                "user": self._settings.user,
            },
        }

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return the benchmark's reward: 1.0 if customer or agent ended the episode and every check holds, else 0.0.
        With `sparse=False` the share of checks that hold now. An open query scores 0.0."""
        flags = read_flags(params, {"sparse": True})
        if self._settings.is_open_query:
            return 0.0
        if flags["sparse"]:
            return float(self._stop == "finished" and all(check.passed for check in self._checks()))
        found = self._checks()
        return sum(check.passed for check in found) / len(found) if found else 1.0

    def _checks(self) -> list[Tau2Check]:
        return checks(self._domain, self._task, self._environment, self.trajectory)

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return `params["what"]`: "task" or "tools" (default), "state" (`base.StateInfo`, with `user` and
        `publishable`), "checks" (the task's checks and whether they hold; not for the agent)."""
        asked = dict(params or {})
        what = asked.pop("what", "task")
        if asked or what not in ("task", "tools", "state", "checks"):
            raise ValueError(f"get_info of tau2 understands what=task|tools|state|checks; got {params!r}")
        if what == "checks":
            return [{"kind": check.kind, "what": check.what, "passed": check.passed} for check in self._checks()]
        if what == "state":
            is_finished = self._stop == "finished"
            return {
                "facts": end_state(self._domain, self._environment),
                "answer": self._said if is_finished else None,
                "finished": is_finished,
                "exact": True,
                "prose": True,
                "user": self._settings.user,
                "publishable": self._settings.user != "scripted",
            }
        return {**self._facts(), "tools": self.tools()}

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the agent's tools; without a customer also those of the phone, and `done`."""
        offered = list(self._domain.schemas)
        if self._is_solo:
            offered += [*self._domain.user_schemas, prompts.done_tool()]
        return copy.deepcopy(offered)

    def _facts(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "domain": self._domain.name,
            "user": self._settings.user,
            "publishable": self._settings.user != "scripted",
            "is_open_query": self._settings.is_open_query,
        }

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, test, base (both) or full; `domains`, a list, narrows them."""
        asked = dict(params or {})
        domains = asked.pop("domains", list(DOMAINS))
        if asked:
            raise ValueError(f"unknown parameter {next(iter(asked))!r} of tau2's tasks; known: domains")
        if not isinstance(domains, list) or not domains or not all(name in DOMAINS for name in domains):
            raise ValueError(f"domains={domains!r} must be a list with some of: {', '.join(DOMAINS)}")
        return task_ids(split, tuple(domains))


def _to_agent(content: str) -> Message:
    return {"role": "user", "content": content}


def _unread(call: BadCall) -> str:
    return f"Malformed tool call: {call.reason}. Nothing was executed for it."

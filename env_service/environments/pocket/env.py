"""PocketWorld as an environment: an instance is one episode of a task, or of exploring."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.pocket.calls import (
    SYNTAXES,
    CallError,
    PocketCall,
    Syntax,
    call_of,
    parse,
    render,
    undotted,
)
from env_service.environments.pocket.grading import score
from env_service.environments.pocket.prompts import native_schema, opening, refusal, tool_schema
from env_service.environments.pocket.quirks import signature, site_hint
from env_service.environments.pocket.tasks import (
    OPEN,
    WorldTask,
    make_task,
    open_world,
    read_list_params,
    split_id,
    task_ids,
)
from env_service.environments.pocket.tools import TOOLS
from env_service.environments.pocket.world import PocketWorld
from env_service.feedback import Feedback, read_feedback, told
from env_service.parameters import laid_over
from env_service.tool_calls import BadCall, answer_to, structured_calls

_HOW_TO_NATIVE = "call a tool"


@dataclass(frozen=True, slots=True)
class PocketParams:
    """Parameters of `create`; README.md describes them."""

    slack: int = 1
    syntax: Syntax = "compact"
    verbose: bool = False
    manual: bool = False
    native_tools: bool = False
    is_open_query: bool = False
    explore_steps: int = 8
    sparse: bool = True
    feedback: Feedback = "plain"
    latency: dict[str, float] = field(default_factory=dict)

    def updated(self, params: dict[str, Any] | None) -> Self:
        made = laid_over(self, params)
        if made.slack < 0 or made.explore_steps < 1:
            raise ValueError(f"slack={made.slack} must be 0 or more, explore_steps={made.explore_steps} 1 or more")
        if made.syntax not in SYNTAXES:
            raise ValueError(f"parameter syntax={made.syntax!r} must be one of {', '.join(SYNTAXES)}")
        read_feedback(made.feedback)
        _read_latency(made.latency)
        return replace(made, syntax="json") if made.native_tools else made


def _read_latency(latency: dict[str, float]) -> tuple[float, float]:
    share, seconds = latency.get("share", 0.0), latency.get("seconds", 0.0)
    known = latency.keys() <= {"share", "seconds"} and all(type(value) in (int, float) for value in latency.values())
    if not (known and 0 <= share <= 1 and 0 <= seconds < PocketEnv.call_timeout_s):
        raise ValueError(
            f"parameter latency={latency!r} must be {{share: 0 to 1, seconds: 0 to below {PocketEnv.call_timeout_s:g}}}"
        )
    return float(share), float(seconds)


class PocketEnv(BaseEnv):
    """A small world of apps with short text calls; parameters: `PocketParams`."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 10.0
    explore_steps: ClassVar[str] = "explore_steps"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = self._usual().updated(params)
        self._begin()

    @staticmethod
    def _usual() -> PocketParams:
        return PocketParams()

    def _begin(self) -> None:
        is_open = self._settings.is_open_query or split_id(self.task_id)[0] == OPEN
        self.task: WorldTask | None = None if is_open else make_task(self.task_id)
        self.world: PocketWorld = open_world(self.task_id, self._settings.syntax)
        self.max_steps = len(self.task.solution) + self._settings.slack if self.task else self._settings.explore_steps
        self.steps = 0
        self.errors = 0

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        self._settings = self._settings.updated(params)
        self._begin()
        messages, facts = self._opening()
        facts = {"query": messages[-1]["content"], **facts, "site": f"k{self.world.site}", "max_steps": self.max_steps}
        facts["is_open_query"] = self.is_open
        return {"state": messages, "info": {"instance_id": self.instance_id, "task_id": self.task_id, **facts}}

    def _opening(self) -> tuple[list[Message], dict[str, Any]]:
        task = self.task
        messages = self._opening_messages(task.query if task else None)
        return messages, {"query": task.query, "family": task.family, "level": task.level} if task else {}

    def _opening_messages(self, query: str | None) -> list[Message]:
        chosen = self._settings
        native = chosen.native_tools
        return opening(
            self.world.site, query, syntax=chosen.syntax, verbose=chosen.verbose, native=native, manual=chosen.manual
        )

    @property
    def is_open(self) -> bool:
        return self.task is None

    @property
    def is_over(self) -> bool:
        return self.world.answer is not None or self.steps >= self.max_steps

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Carry out the call of a message; with native tools all of its calls, each a step. `info`: steps, errors so
        far, `refused`, `finished`, `answer`, `stop_reason` (finished, max_steps or None)."""
        if self.is_over:
            raise ValueError(
                f"the episode of task {self.task_id!r} is over after {self.steps} steps; create a new instance"
            )
        if self._settings.latency:
            time.sleep(self._latency_s)
        if self._settings.native_tools:
            state, refused = self._answer_natively(action)
        else:
            answer, refused = self._answer(partial(parse, action, self._settings.syntax))
            state = [{"role": "user", "content": answer}]
        stop = "finished" if self.world.answer is not None else "max_steps" if self.is_over else None
        return {
            "state": state,
            "reward": self.evaluate() if stop else 0.0,
            "is_terminated": stop is not None,
            "info": {
                "steps": self.steps,
                "errors": self.errors,
                "refused": refused,
                "finished": stop == "finished",
                "answer": self.world.answer,
                "stop_reason": stop,
            },
        }

    @property
    def _latency_s(self) -> float:
        share, seconds = _read_latency(self._settings.latency)
        return seconds if random.Random(self.instance_id).random() < share else 0.0

    def _answer(self, read: Callable[[], PocketCall]) -> tuple[str, bool]:
        """Carry out one call; returns the observation, and whether the call was refused."""
        self.steps += 1
        call: PocketCall | None = None
        try:
            call = read()
            return self._carry_out(call), False
        except CallError as error:
            self.errors += 1
            usage, next_step = self.world.hints(call)
            text, chosen = f"err {error}", self._settings
            if chosen.verbose and not chosen.manual and (call is None or call.tool not in TOOLS):
                text = refusal(str(error), chosen.syntax, native=chosen.native_tools)
            return told(text, chosen.feedback, usage=usage, next_step=next_step), True

    def _answer_natively(self, action: Message) -> tuple[list[Message], bool]:
        """Answer each call of a message (calls after the episode's end are not carried out); returns the observation,
        and whether any was refused."""
        calls = structured_calls(action)
        if not calls:
            text, refused = self._answer(partial(call_of, BadCall("no call"), _HOW_TO_NATIVE))
            return [{"role": "user", "content": text}], refused
        state, any_refused = list[Message](), False
        for call in calls:
            text, refused = "err not carried out , the episode is over", True
            if not self.is_over:
                text, refused = self._answer(partial(call_of, call, _HOW_TO_NATIVE))
            state.append(answer_to(call, undotted(text)))
            any_refused |= refused
        return state, any_refused

    def _carry_out(self, call: PocketCall) -> str:
        return self.world.carry_out(call)

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade the present state: sparse 0 or 1, or the dense share of checks beyond doing nothing; 0 without a
        task."""
        sparse = self._settings.updated(params).sparse
        return score(self.task, self.world, sparse=sparse) if self.task else 0.0

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return `params["what"]`: "tools" (default; arguments in the usual order, sites may differ), or "state"
        (`base.StateInfo`; `facts`: rows by table and key) with `steps`."""
        wanted = dict(params or {})
        what = wanted.pop("what", "tools")
        if wanted or what not in ("tools", "state"):
            raise ValueError(f"get_info of pocket understands what=tools or what=state; got {params!r}")
        if what == "tools":
            return {"tools": [tool_schema(tool) for tool in TOOLS.values()]}
        facts: dict[str, Any] = {}
        for (table, *key), value in self.world.tables.facts().items():
            shown = list(value) if isinstance(value, tuple) else value
            if key:
                facts.setdefault(str(table), {})[" ".join(map(str, key))] = shown
            else:
                facts[str(table)] = shown
        answer = self.world.answer
        return {"facts": facts, "answer": answer, "finished": answer is not None, "exact": True, "steps": self.steps}

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        return [native_schema(tool) for tool in TOOLS.values()]

    def _solution(self) -> Sequence[PocketCall]:
        return self.task.solution if self.task else ()

    def reference_actions(self) -> list[str] | None:
        """Return the solution's calls in this site's form."""
        chosen, quirks = self._settings, self.world.quirks
        texts = [render(call, signature(call.tool, quirks), chosen.syntax) for call in self._solution()]
        return None if self.steps else [undotted(text) if chosen.native_tools else text for text in texts] or None

    def reference_hint(self) -> str:
        return site_hint(self.world.site)

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, dev, test or hard; `n` and `levels` narrow or widen the list."""
        n, levels = read_list_params(params or {})
        return task_ids(split, n, levels)

"""PocketWorld as an environment: one instance is one episode of one task, or of exploring without one.

Everything an agent may write leads to an observation, never to an exception; what the caller asks wrongly (an unknown
task or parameter, a step after the end) raises ValueError.
"""

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
from env_service.environments.pocket.prompts import native_schema, opening, tool_schema
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
    """- `slack`: calls an episode may spend beyond the reference solution; 0 makes experience count most, 2 or 3 suit a
    real LLM.
    - `syntax`: how calls are written in the prompt and in errors; both syntaxes are always understood.
    - `verbose`: a system message with rules and tools, for a real LLM.
    - `native_tools`: calls come in `tool_calls` and nowhere else; each counts as a step. Errors then use JSON.
    - `is_open_query`: no task, explore for `explore_steps` calls.
    - `sparse`: whether `evaluate` gives 0 or 1, or the dense share of checks.
    - `feedback`: what a refusal says (`env_service.feedback`); for training alone.
    - `latency`: `{share: 0.03, seconds: 1.5}` lets that share of the episodes take so many seconds more for each call,
      as an environment that is slow now and then does; for tests and benchmarks of what that costs a training.
    """

    slack: int = 1
    syntax: Syntax = "compact"
    verbose: bool = False
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
    """Return the share of slow episodes and the seconds of their calls; raises ValueError."""
    share, seconds = latency.get("share", 0.0), latency.get("seconds", 0.0)
    known = latency.keys() <= {"share", "seconds"} and all(type(value) in (int, float) for value in latency.values())
    if not (known and 0 <= share <= 1 and 0 <= seconds < PocketEnv.call_timeout_s):
        raise ValueError(
            f"parameter latency={latency!r} must be {{share: 0 to 1, seconds: 0 to below {PocketEnv.call_timeout_s:g}}}"
        )
    return float(share), float(seconds)


class PocketEnv(BaseEnv):
    """A little world of apps, worked by short text calls; see `settings.PocketParams` for the parameters."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 10.0
    explore_steps: ClassVar[str] = "explore_steps"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        """Build the start state; raises ValueError for a wrong id or parameter."""
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
        """Return the two opening messages; `params` given here count on top of those of the constructor
        and restart the episode."""
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
        return opening(self.world.site, query, syntax=chosen.syntax, verbose=chosen.verbose, native=native)

    @property
    def is_open(self) -> bool:
        """Whether the episode has no task."""
        return self.task is None

    @property
    def is_over(self) -> bool:
        """Whether `done` was called or the step budget is spent."""
        return self.world.answer is not None or self.steps >= self.max_steps

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Carry out the one call of an assistant message; with native tools all of its calls, each a step, in their
        order. The reward is 0 until the episode is over, then what `evaluate` says.

        `info`: steps, errors so far, `refused`, `finished`, `answer`, and `stop_reason` (finished, max_steps or None).
        Raises ValueError if the episode is over.
        """
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
        """Read a call and carry it out as one step; returns the observation, and whether the call was refused."""
        self.steps += 1
        call: PocketCall | None = None
        try:
            call = read()
            return self._carry_out(call), False
        except CallError as error:
            self.errors += 1
            usage, next_step = self.world.hints(call)
            return told(f"err {error}", self._settings.feedback, usage=usage, next_step=next_step), True

    def _answer_natively(self, action: Message) -> tuple[list[Message], bool]:
        """Answer each call of a message, those after the episode's end without carrying them out; returns the
        observation, and whether any was refused."""
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
        """Grade the state as it is now: sparse 0 or 1, or the dense share of checks beyond doing nothing;
        0 without a task."""
        sparse = self._settings.updated(params).sparse
        return score(self.task, self.world, sparse=sparse) if self.task else 0.0

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return facts about the instance; `params["what"]` picks which.

        - "tools" (default): the tools as OpenAI-style schemas under `tools`, with arguments in the usual order: sites
            may differ.
        - "state": what tasks are graded on (`base.StateInfo`; `facts`: rows by table and key), and `steps`.
        """
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
        """Return the solution's calls as this site wants them."""
        chosen, quirks = self._settings, self.world.quirks
        texts = [render(call, signature(call.tool, quirks), chosen.syntax) for call in self._solution()]
        return None if self.steps else [undotted(text) if chosen.native_tools else text for text in texts] or None

    def reference_hint(self) -> str:
        return site_hint(self.world.site)

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of train, dev, test or hard;
        `n` and `levels` narrow or widen the list. Raises ValueError."""
        n, levels = read_list_params(params or {})
        return task_ids(split, n, levels)

"""The environment reasoning_gym: one question of a generator, one answer, and the package's verdict.

A missing package or sandbox raises RuntimeError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.reasoning_gym.actions import ReasoningAnswer, ReasoningNoAction, answer_of_call, parse
from env_service.environments.reasoning_gym.library import Library
from env_service.environments.reasoning_gym.prompts import OPEN_QUERY, opening, tool_schema
from env_service.environments.reasoning_gym.tasks import read_id, task_ids
from env_service.parameters import laid_over
from env_service.tool_calls import answer_to, structured_calls


@dataclass(frozen=True, slots=True)
class GymParams:
    """- `max_steps`: messages that an episode may take; the first one with an answer ends it.
    - `native_tools`: the answer comes in `tool_calls` and nowhere else.
    - `is_open_query`: no task.
    - `sparse`: 0 or 1; false gives the package's partial credit.
    """

    max_steps: int = 2
    native_tools: bool = False
    is_open_query: bool = False
    sparse: bool = True

    def updated(self, params: dict[str, Any] | None) -> GymParams:
        made = laid_over(self, params)
        if not 1 <= made.max_steps <= 1000:
            raise ValueError(f"max_steps={made.max_steps} must be from 1 to 1000")
        return made


class ReasoningGymEnv(BaseEnv):
    """One question; see `GymParams`."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 180.0  # callers take turns at the sandbox, which has 30 s for each
    explore_steps: ClassVar[str] = "max_steps"
    native_tools: ClassVar[bool] = True

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._settings = GymParams().updated(params)
        self._library = Library.shared()
        self._name = read_id(task_id, self._library.levels)
        self._item = self._library.item(self._name.generator, self._name.level, self._name.seed)
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self._answer: str | None = None
        self._score: float | None = None

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        self._settings = self._settings.updated(params)
        self._begin()
        chosen = self._settings
        question = OPEN_QUERY if chosen.is_open_query else self._item.question
        facts = {"generator": self._name.generator, "level": self._name.level, "max_steps": chosen.max_steps}
        state = opening(question, native=chosen.native_tools)
        # An empty query would be no query; one that has space around it stands in the message as it is.
        query = {"query": question} if question.strip() else {}
        names = {"instance_id": self.instance_id, "task_id": self.task_id, "is_open_query": chosen.is_open_query}
        return {"state": state, "info": {**query, **names, **facts}}

    @property
    def is_over(self) -> bool:
        return self._answer is not None or self._steps >= self._settings.max_steps

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Take the answer of a message, if it holds one.

        `info`: steps, `refused`, `finished`, `answer`, and `stop_reason` (finished, max_steps or None).
        """
        if self.is_over:
            raise ValueError(f"the episode of task {self.task_id!r} is over; create a new instance")
        self._steps += 1
        calls = structured_calls(action) if self._settings.native_tools else []
        if not calls:
            found = parse(str(action.get("content") or ""))
            if self._settings.native_tools and isinstance(found, ReasoningAnswer):
                found = ReasoningNoAction("call the tool `answer`; an answer in the text is not taken")
            state: list[Message] = [{"role": "user", "content": self._take(found)}]
            refused = isinstance(found, ReasoningNoAction)
        else:
            state, refused = [], False
            for call in calls:
                read = answer_of_call(call) if self._answer is None else ReasoningNoAction("the episode is over")
                state.append(answer_to(call, self._take(read)))
                refused |= isinstance(read, ReasoningNoAction)
        finished = self._answer is not None
        return {
            "state": state,
            "reward": self.evaluate() if self.is_over else 0.0,
            "is_terminated": self.is_over,
            "info": {
                "steps": self._steps,
                "refused": refused,
                "finished": finished,
                "answer": self._answer,
                "stop_reason": "finished" if finished else "max_steps" if self.is_over else None,
            },
        }

    def _take(self, found: ReasoningAnswer | ReasoningNoAction) -> str:
        if isinstance(found, ReasoningNoAction):
            return found.reason
        self._answer = found.text
        return "The answer was taken."

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return the package's score of the final answer; by default 1 if it is right, else 0. 0 without a task or an
        answer."""
        chosen = self._settings.updated(params)
        if self._answer is None or chosen.is_open_query:
            return 0.0
        if self._score is None:
            name = self._name
            self._score = self._library.verdict(name.generator, name.level, name.seed, self._answer)
        return float(self._score >= 1.0) if chosen.sparse else self._score

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the tool's schema under `tools`; with `what` "state" the state (`base.StateInfo`). `calls` is always
        0."""
        options = dict(params or {})
        what = options.pop("what", "tools")
        if options or what not in ("tools", "state"):
            raise ValueError(f"get_info of reasoning_gym understands what=tools or what=state; got {params!r}")
        if what == "tools":
            return {"tools": [tool_schema()]}
        return {"facts": {"calls": 0}, "answer": self._answer, "finished": self._answer is not None, "exact": True}

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return task ids of train, dev or test (`tasks.task_ids`)."""
        return task_ids(split, params, Library.shared().levels)

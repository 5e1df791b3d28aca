"""The contract of an environment: one instance is one episode of one task.

The host creates an instance, calls it from one thread at a time, and closes it. An exception reaches the caller as a
typed error, never as a reward: `ValueError` means a wrong request (HTTP 400), anything else a failure of the
environment (HTTP 500).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NotRequired, TypedDict


class Message(TypedDict):
    """A chat message: `role` is one of system, user, assistant, tool.

    `tool_calls` are in the form of OpenAI's chat API (`tool_calls.structured_calls` reads them). If `content` is null
    beside them, the service replaces it by "". A tool's answer names its call by `tool_call_id` and `name`.
    """

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class InitState(TypedDict):
    """The opening messages (the last one from the user) and facts about the instance.

    `info["query"]`, if given, is the part of the last message that states the task and occurs there exactly once: a
    synthetic task replaces it. Without `info["query"]`, a synthetic task is appended to the last message.
    """

    state: list[Message]
    info: dict[str, Any]


class StepInfo(TypedDict, total=False):
    """Keys of a step's `info` that describe the action; all are optional.

    - `refused`: true, or the reason, if the action was refused or failed; false if it was carried out.
    - `finished`: whether this action ended the episode as intended; true only with `is_terminated`.
    - `answer`: the answer that the action gave, or None.
    - `tools`: the new native tools, if they change.

    Without `refused` and `finished` it is unknown whether the action took effect.
    """

    refused: bool | str
    finished: bool
    answer: str | None
    tools: list[dict[str, Any]]


class StateInfo(TypedDict):
    """The result of `get_info(params={"what": "state"})`; None if an environment does not tell its state.

    - `facts`: everything that a task may change, as nested objects with text keys; unchanged if nothing happened.
    - `answer`: the given answer, or None.
    - `finished`: whether the episode ended as intended; None if unknown.
    - `exact`: whether equal facts mean equal states, so that a task can be graded by them.
    - `prose`: whether answers are sentences, to be compared by meaning (default: false, compared as text).
    """

    facts: dict[str, Any]
    answer: str | None
    finished: bool | None
    exact: bool
    prose: NotRequired[bool]


class StepResult(TypedDict):
    """Observation messages, immediate reward, end of the episode, and facts (`StepInfo` and others)."""

    state: list[Message]
    reward: float
    is_terminated: bool
    info: dict[str, Any]


class BaseEnv(ABC):
    """One episode of one task.

    Class attributes declare how the service hosts it:

    - `isolation`: "shared": one process holds many instances (cheap pure Python that cannot harm its neighbours);
      "isolated": each instance has its own process (anything that runs an agent's code).
    - `call_timeout_s`: seconds of one call before the service gives it up with HTTP 504.
    - `memory_mb`: MiB of address space that an isolated instance may add; 0: no limit.
    - `explore_steps`: name of the parameter of `create` that limits an episode's actions; "" if there is no limit.
      Exploration and replay create with `explore_steps`, which the service passes on under this name.
    - `native_tools`: whether `create` takes `native_tools: true`. Such an opening lists no tools and no rules for calls
      (the service adds `tools` to its `info`, for the chat template). `step` takes `tool_calls` and answers each, in
      order, with a message of the role `tool`.
    - `parallel_calls`: whether the calls of one message run at the same time, or each after the other.
    """

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"
    call_timeout_s: ClassVar[float] = 60.0
    memory_mb: ClassVar[int] = 1024
    explore_steps: ClassVar[str] = ""
    native_tools: ClassVar[bool] = False
    parallel_calls: ClassVar[bool] = False

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        """Keep the ids; raise ValueError if the task does not exist or a parameter is wrong."""
        self.task_id = task_id
        self.instance_id = instance_id
        self.params = dict(params or {})

    @classmethod
    def warm_up(cls) -> None:
        """Prepare a fresh isolated process for its one instance, while it waits in the warm stock: start helpers, read
        tasks. Never called in a shared host.

        An exception fails the `create` that gets the process. Everything started must end with the process: many are
        never used.
        """

    @abstractmethod
    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        """Return the opening messages. `params["is_open_query"]` asks for an episode without a task (exploration)."""

    @abstractmethod
    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Apply one assistant message and return the environment's answer."""

    @abstractmethod
    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Return a score in 0..1 from the environment's own state; 0 or 1 if `params["sparse"]` (default true)."""

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return JSON-ready facts about the instance; `params["what"]` is "tools" or "state" (`StateInfo`). None if
        unknown."""
        return None

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the tools in OpenAI's form (`{"type": "function", "function": {name, description, parameters}}`), with
        names of letters, digits, _ and -. The default takes those of `get_info`. `params` are those of `create`."""
        try:
            told = self.get_info(params={"what": "tools"})
        except ValueError:
            return []
        tools = told.get("tools") if isinstance(told, dict) else None
        return tools if isinstance(tools, list) else []

    def reference_actions(self) -> list[str] | None:
        """Return the actions that solve the task from the present state, or None if they are unknown: texts of
        assistant messages in the format in use, with native tools each call in `<tool_call>` tags.

        Demonstrations call this before the first step and after each mistake; None after a mistake means that the
        remaining actions are still right.
        """
        return None

    def reference_hint(self) -> str | None:
        """Return advice about the environment that an agent could have learnt from experience, without revealing the
        task's solution. None if there is none."""
        return None

    def close(self) -> None:
        """Free the instance's resources. Called once; must not raise after an early end."""

    @staticmethod
    @abstractmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of a split, always in the same order; raise ValueError for an unknown split."""

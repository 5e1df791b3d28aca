"""The contract of an environment: one instance is one episode of one task.

An environment knows nothing of HTTP, Ray or the agent. The host creates it, calls it from one thread at a time, and
closes it. What a method raises reaches the caller as a typed error and never as a reward: `ValueError` means that the
caller asked for something wrong (HTTP 400), anything else that the environment failed (HTTP 500).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NotRequired, TypedDict


class Message(TypedDict):
    """A chat message: `role` is one of system, user, assistant, tool.

    `tool_calls` are an assistant's calls as OpenAI's chat API writes them (`tool_calls.structured_calls` reads them).
    `content` is null beside them in many an API; the service puts "" in its place before an environment sees it. A
    tool's answer names its call by `tool_call_id` and `name`.
    """

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class InitState(TypedDict):
    """The opening messages (the last one from the user) and facts about the instance.

    `info["query"]`, where it is told, is the part of the last message that asks for something: it stands there exactly
    once, and a task that somebody made up puts its own words in its place. Without it such a task stands below the last
    message, of which nothing is lost.
    """

    state: list[Message]
    info: dict[str, Any]


class StepInfo(TypedDict, total=False):
    """What `info` of a step says of the action, beside whatever else the environment puts there.
    All keys may be left out.

    - `refused`: true, or why, if the environment did not carry the action out or it failed; false if it was carried
        out.
    - `finished`: whether the episode ended with this action as an agent should end it; true only where `is_terminated`
        is.
    - `answer`: the answer that the action gave, None if it gave none.
    - `tools`: the tools from now on, where the episode has native tools and they change.

    An environment that tells neither `refused` nor `finished` leaves open what became of an action.
    """

    refused: bool | str
    finished: bool
    answer: str | None
    tools: list[dict[str, Any]]


class StateInfo(TypedDict):
    """What `get_info(params={"what": "state"})` returns where an environment tells its state; else it returns None.

    - `facts`: everything a task may change, as nested objects with text keys; the same twice if nothing happened in
        between.
    - `answer`: the answer that was given, None before there is one.
    - `finished`: whether the episode ended as an agent should end it; None where that is not known.
    - `exact`: whether equal facts mean equal states; if so, a task can be graded by them.
    - `prose`: whether answers are sentences, which have to be understood to be compared (default: false, they are
        compared as text).
    """

    facts: dict[str, Any]
    answer: str | None
    finished: bool | None
    exact: bool
    prose: NotRequired[bool]


class StepResult(TypedDict):
    """The observation messages, the immediate reward, whether the episode is over,
    and facts (`StepInfo` and others)."""

    state: list[Message]
    reward: float
    is_terminated: bool
    info: dict[str, Any]


class BaseEnv(ABC):
    """One episode of one task.

    Class attributes declare how the service may host it:

    - `isolation`: "shared" lets one process hold many instances (pure Python that is cheap and cannot harm its
        neighbours);
      "isolated" gives each instance a process of its own, taken from a warm pool (anything that executes an agent's
      code).
    - `call_timeout_s`: seconds that one call may take before the service gives it up with HTTP 504.
    - `memory_mb`: MiB of address space that an isolated instance may take beyond what importing the environment took; 0
        means no limit.
    - `explore_steps`: name of the parameter of `create` that sets how many actions an episode may take. Whoever
        explores or carries out a
      solution creates with `explore_steps`, and the service passes the number on under this name; "" if episodes have
      no such limit.
    - `native_tools`: whether `create` takes `native_tools: true`. Such an episode's opening holds neither a list of
        tools nor rules for writing calls (the service adds `tools` to its `info`, for the model's chat template);
        `step` takes calls in `tool_calls` and answers each, in their order, with a message of the role `tool`.
    - `parallel_calls`: whether the calls of one message are carried out at the same time; else one after the other, so
        that each finds what those before it left. `info` of a native opening tells it.
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
        """Prepare a fresh process for the one instance that it will hold; does nothing unless overridden.

        Called once in each isolated process while it waits in the warm stock, so that what takes long (starting a
        helper process, reading tasks) is done before somebody asks. Never called in a shared host. An exception fails
        the create that the process is then used for. Whatever it starts must end with the process: most warmed-up
        processes of a service that stops were never used.
        """

    @abstractmethod
    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        """Return the opening messages. `params["is_open_query"]` asks for an episode without a task (exploration)."""

    @abstractmethod
    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Apply one assistant message and return what the environment answers."""

    @abstractmethod
    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade the episode in 0..1 from the environment's own state;
        `params["sparse"]` (default true) asks for 0 or 1."""

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        """Return facts about the instance as JSON-ready data: `params["what"]` is "tools" or "state" (`StateInfo`),
        None if not told."""
        return None

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the tools as OpenAI's chat API takes them (`{"type": "function", "function": {name, description,
        parameters}}`), with names of letters, digits, _ and - alone. Those that `get_info` tells, unless overridden;
        [] if it tells none. `params` are those of `create`."""
        try:
            told = self.get_info(params={"what": "tools"})
        except ValueError:
            return []
        tools = told.get("tools") if isinstance(told, dict) else None
        return tools if isinstance(tools, list) else []

    def close(self) -> None:
        """Free what the instance holds. Called once; must not raise for an episode that ended early."""

    @staticmethod
    @abstractmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the task ids of a split, always in the same order; raise ValueError for an unknown split."""

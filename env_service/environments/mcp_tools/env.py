"""The "mcp" environment: fulfil a request with the tools of MCP servers that the service's operator configured.

A tool's failure or time-out is an observation. A dead server raises ServerError, a judge without a verdict JudgeError.
Each instance has its own folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from agentevolver.utils.names import did_you_mean
from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.environments.mcp_tools import prompts
from env_service.environments.mcp_tools.calls import answer_line, parse, visible_text
from env_service.environments.mcp_tools.config import McpConfig, config_path, load_config, resolved, task_paths
from env_service.environments.mcp_tools.grading import Record, grade, read_judge, state_of
from env_service.environments.mcp_tools.servers import Connect, ServerError, Servers, connector
from env_service.environments.mcp_tools.tasks import SPLITS, McpTask, load_tasks
from env_service.parameters import read_flags
from env_service.tool_calls import BadCall, ToolCall, answer_to, structured_calls, tool_responses

PREFIX = "mcp-instance-"
STALE_AFTER_S = 24 * 3600.0


def new_folder() -> Path:
    """Return a new folder that only this user can enter."""
    _sweep(Path(tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _sweep(root: Path) -> None:
    """Remove folders of dead processes. Only old ones, because a process in another pid namespace looks dead."""
    for folder in root.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        try:
            old = time.time() - folder.stat().st_mtime > STALE_AFTER_S
        except OSError:  # somebody else removed it in between
            continue
        if old and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


_FLAGS = {"is_open_query": False, "native_tools": False, "sparse": True}
_STEP_BUDGET_S = 90.0
"""Seconds for all calls of one message."""


def _load(path: Path) -> tuple[McpConfig, dict[str, McpTask]]:
    config = load_config(path)
    return config, load_tasks(task_paths(path, config), judge=read_judge() is not None)


def connects_of(config: McpConfig, config_dir: Path, folder: Path) -> dict[str, Connect]:
    return {name: connector(resolved(server, config_dir, folder)) for name, server in config.mcpServers.items()}


class McpEnv(BaseEnv):
    """One request with its own set of servers. Parameters: `is_open_query`, `native_tools` (calls come in `tool_calls`
    alone), `sparse`.

    - `config`: a subclass's configuration, in place of `ENV_MCP_CONFIG`.
    """

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"
    call_timeout_s: ClassVar[float] = 120.0
    memory_mb: ClassVar[int] = (
        0  # it would bind the servers, too, and Node.js reserves gigabytes of address space at its start
    )
    native_tools: ClassVar[bool] = True
    config: ClassVar[Path | None] = None

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        self._flags = read_flags(params, _FLAGS)
        path = self.config or config_path()
        self._config, tasks = _load(path)
        if task_id not in tasks:
            hint = did_you_mean(task_id, tasks, before="; ")
            raise ValueError(f"unknown task {task_id!r} of the mcp environment{hint}")
        self._task = tasks[task_id]
        self._judge = read_judge()
        self._record = Record(new_folder())
        self._is_set_up = False
        self._grades: dict[bool, float] = {}
        self._counts = {"steps": 0, "calls": 0, "errors": 0}
        try:
            connects = connects_of(self._config, path.parent, self._record.folder)
        except BaseException:
            shutil.rmtree(self._record.folder, ignore_errors=True)
            raise
        self._servers = Servers(connects, self._config.start_timeout_s)

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        self._flags = read_flags(params, self._flags)
        self._servers.wait_started()
        self._set_up()
        query = prompts.OPEN_QUERY if self._flags["is_open_query"] else self._task.question
        tools = self._servers.tools.values()
        system = prompts.NATIVE_SYSTEM if self._flags["native_tools"] else prompts.system_prompt(tools)
        facts = {"query": query, "is_open_query": self._flags["is_open_query"], "tools": list(self._servers.tools)}
        return {
            "state": [{"role": "system", "content": system}, {"role": "user", "content": query}],
            "info": {"instance_id": self.instance_id, "task_id": self.task_id, **facts},
        }

    def _set_up(self) -> None:
        if self._is_set_up:
            return
        self._is_set_up = True
        for call in self._task.setup:
            if call.tool not in self._servers.tools:
                raise ServerError(f"setup of task {self.task_id!r} calls {call.tool!r}, which no server has")
            result = self._servers.call(call.tool, call.arguments, self._config.call_timeout_s)
            if result.is_error:
                raise ServerError(f"setup of task {self.task_id!r}: {call.tool!r} failed: {result.text[:300]}")

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        """Carry out the message's calls; a message without calls is the final one. Raises ValueError after the end,
        ServerError if a server is gone."""
        if self._record.final_text is not None:
            raise ValueError(f"the episode of task {self.task_id!r} is over; create a new instance")
        self._counts["steps"] += 1
        calls = structured_calls(action) if self._flags["native_tools"] else parse(action)
        if not calls:
            self._record.final_text = visible_text(action)
            return self._reply([{"role": "user", "content": "The task is closed."}], over=True)
        results = self._carry_out(calls)
        texts = [text for text, _ in results]
        refused = next((text for text, was_carried_out in results if not was_carried_out), False)
        if action.get("tool_calls"):
            state = [answer_to(call, text) for call, text in zip(calls, texts, strict=True)]
            return self._reply(state, refused=refused)
        return self._reply([{"role": "user", "content": tool_responses(texts)}], refused=refused)

    def _reply(self, state: list[Message], *, over: bool = False, refused: bool | str = False) -> StepResult:
        reward = self.evaluate() if over else 0.0
        said = {"refused": refused, "finished": over, "answer": self._answer()}
        info = {**self._counts, **said, "stop_reason": "finished" if over else None}
        return {"state": state, "reward": reward, "is_terminated": over, "info": info}

    def _answer(self) -> str | None:
        """The final message's line `answer: ...`, "" without one; None before the final message."""
        return None if self._record.final_text is None else answer_line(self._record.final_text) or ""

    def _carry_out(self, calls: list[ToolCall | BadCall]) -> list[tuple[str, bool]]:
        """Carry out calls in order; return each result, and whether it is free of errors."""
        deadline = time.monotonic() + _STEP_BUDGET_S
        results = []
        for number, call in enumerate(calls):
            if number >= self._config.max_calls:
                results.append((f"Not carried out: a message may hold {self._config.max_calls} calls.", False))
            elif time.monotonic() >= deadline:
                results.append(("Not carried out: the time for the calls of one message is used up.", False))
            else:
                results.append(self._carry_out_one(call, deadline - time.monotonic()))
        return results

    def _carry_out_one(self, call: ToolCall | BadCall, left_s: float) -> tuple[str, bool]:
        if isinstance(call, BadCall):
            self._counts["errors"] += 1
            return f"Error: {call.reason}", False
        name = self._names().get(call.name)
        if name is None:
            self._counts["errors"] += 1
            hint = did_you_mean(call.name, self._names(), ".", before="; ")
            return f"Error: there is no function {repr(call.name)[:80]}{hint}", False
        result = self._servers.call(name, call.arguments, min(self._config.call_timeout_s, left_s))
        self._counts["calls"] += 1
        self._counts["errors"] += result.is_error
        self._record.calls.append((name, call.arguments, result))
        text = prompts.clipped(result.text, self._config.max_result_chars)
        return (f"Error: {text}", False) if result.is_error else (text, True)

    def _names(self) -> dict[str, str]:
        names = list(self._servers.tools)
        return prompts.native_names(names) if self._flags["native_tools"] else {name: name for name in names}

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        """Grade by the task's checks: 0 or 1, with `sparse` false the share that holds; 0 before the end. The agent's
        claims do not count. Raises ServerError for a lost server, JudgeError without a verdict."""
        sparse = read_flags(params, self._flags)["sparse"]
        if not self._grades:
            self._servers.check_alive()
        if self._flags["is_open_query"] or self._record.final_text is None:
            return 0.0
        if sparse not in self._grades:
            self._grades[sparse] = grade(self._task, self._record, self._judge, sparse=sparse)
        return self._grades[sparse]

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the tools in OpenAI's form and the counts so far; with `what` "state" the state (`base.StateInfo`):
        the configured state files."""
        options = dict(params or {})
        what = options.pop("what", "tools")
        if options or what not in ("tools", "state"):
            raise ValueError(f"get_info of the mcp environment knows only `what`, tools or state; got {params!r}")
        self._servers.wait_started()
        if what == "state":
            facts, exact = state_of(self._record, self._config.state)
            return {
                "facts": facts,
                "answer": self._answer(),
                "finished": self._record.final_text is not None,
                "exact": exact,
            }
        return {
            "tools": [prompts.tool_schema(tool) for tool in self._servers.tools.values()],
            "counts": dict(self._counts),
        }

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        self._servers.wait_started()
        tools = self._servers.tools
        return [
            prompts.tool_schema(replace(tools[there], name=name))
            for name, there in prompts.native_names(list(tools)).items()
        ]

    def close(self) -> None:
        try:
            self._servers.close()
        finally:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._record.folder)

    @classmethod
    def get_query_list(cls, split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the ids of train, dev or test, in file order; takes no parameters."""
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r} of the mcp environment; use one of {', '.join(SPLITS)}")
        if params:
            raise ValueError(
                f"unknown parameter {sorted(params)[0]!r}: the task list of the mcp environment takes none"
            )
        return [task.id for task in _load(cls.config or config_path())[1].values() if task.split == split]

"""Small environments for the tests: a counter that obeys, and one that misbehaves as its actions say."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import time
from typing import Any, ClassVar, Literal

from env_service.base import BaseEnv, InitState, Message, StepResult
from env_service.tool_calls import ToolCall, answer_to, structured_calls


class Counter(BaseEnv):
    """Adds the numbers that the agent says; solved at ten."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "shared"
    call_timeout_s: ClassVar[float] = 5.0

    def __init__(self, task_id: str, instance_id: str, params: dict[str, Any] | None = None) -> None:
        super().__init__(task_id, instance_id, params)
        if not task_id.startswith("t"):
            raise ValueError(f"no task {task_id!r}")
        self.total = 0
        self.calls = 0

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        if (params or {}).get("fail") == "init":
            raise RuntimeError("the start fails")
        return {
            "state": [{"role": "system", "content": "Count."}, {"role": "user", "content": "Reach ten."}],
            "info": {},
        }

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        text = action["content"]
        self.calls += 1
        if text.startswith("!"):
            return self.misbehave(text[1:])
        self.total += int(text)
        done = self.total >= 10
        reply: Message = {"role": "user", "content": str(self.total)}
        return {"state": [reply], "reward": float(done), "is_terminated": done, "info": {"calls": self.calls}}

    def misbehave(self, how: str) -> Any:
        """Do what the action asks for; a contract is for breaking, here."""
        verb, _, argument = how.partition(" ")
        fine: StepResult = {
            "state": [{"role": "user", "content": "ok"}],
            "reward": 0.0,
            "is_terminated": False,
            "info": {"calls": self.calls},
        }
        if verb == "raise":
            raise KeyError("secret-detail")
        if verb == "exit":
            sys.exit(3)
        if verb == "die":
            os._exit(7)
        if verb == "spin":
            while True:
                self.total += 0
        if verb == "sleep":
            time.sleep(float(argument))
        if verb == "print":
            for _ in range(int(argument)):
                print("x" * 1_000_000)
                os.write(2, b"y" * 1_000_000)
        if verb == "allocate":
            hoard = []
            while True:
                hoard.append(bytearray(16 * 1024 * 1024))
        if verb == "garbage":
            return {
                "object": object(),
                "nan": {**fine, "reward": float("nan")},
                "shape": {"state": "text"},
            }[argument]
        if verb == "object":
            return {**fine, "info": {"x": object()}}
        if verb == "huge":
            return {**fine, "info": {"x": "x" * 200_000}}
        if verb == "crash":
            ctypes.string_at(0)
        if verb == "deaf":
            ctypes.PyDLL(None).usleep(60_000_000)  # holds the interpreter lock: no thread of the process can run
        if verb == "spawn":
            return {**fine, "info": {"pids": spawn_family()}}
        if verb == "environ":
            return {**fine, "info": {"names": sorted(os.environ)}}
        if verb == "random":
            return {**fine, "info": {"number": random.random()}}
        if verb == "pid":
            return {**fine, "state": [{"role": "user", "content": str(os.getpid())}]}
        return fine

    def evaluate(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> float:
        return min(max(self.total, 0), 10) / 10

    def get_info(self, messages: list[Message] | None = None, params: dict[str, Any] | None = None) -> Any:
        return {"tools": ["add"], "messages": len(messages or [])}

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        if split not in ("train", "val"):
            raise ValueError(f"unknown split {split!r}; use 'train' or 'val'")
        return [f"t{number}" for number in range(3 if split == "train" else 2)]


class LonelyCounter(Counter):
    """The same in a process of its own."""

    isolation: ClassVar[Literal["shared", "isolated"]] = "isolated"


class QuickCounter(Counter):
    """One that is soon given up."""

    call_timeout_s: ClassVar[float] = 0.6


class SteadyLonelyCounter(LonelyCounter):
    """One in a process of its own that is given up after a while that a busy machine does not use up."""

    call_timeout_s: ClassVar[float] = 3.0


class WarmCounter(LonelyCounter):
    """Takes its time to get ready, before anybody asks."""

    ready_in: ClassVar[int] = 0

    @classmethod
    def warm_up(cls) -> None:
        time.sleep(0.5)
        cls.ready_in = os.getpid()

    def get_init_state(self, params: dict[str, Any] | None = None) -> InitState:
        return {**super().get_init_state(params), "info": {"ready_here": self.ready_in == os.getpid()}}


def spawn_family() -> list[int]:
    """Start a child, a child in a session of its own, and a daemon whose parent has ended; return their process ids."""
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    child = subprocess.Popen(sleeper)
    leader = subprocess.Popen(sleeper, start_new_session=True)
    script = (
        f"import subprocess; print(subprocess.Popen({sleeper!r}, start_new_session=True, stdout=-3, stderr=-3).pid)"
    )
    daemon = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    return [child.pid, leader.pid, int(daemon.stdout)]


class ToolCounter(Counter):
    """Takes calls of `add`, and lists another tool from five on."""

    native_tools: ClassVar[bool] = True

    def tools(self, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        number = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        names = ["add"] if self.total < 5 else ["add", "subtract"]
        return [{"type": "function", "function": {"name": name, "parameters": number}} for name in names]

    def step(self, action: Message, params: dict[str, Any] | None = None) -> StepResult:
        calls = structured_calls(action)
        if not self.params.get("native_tools") or not calls:
            return super().step({**action, "content": action["content"] or "0"}, params)
        answers = []
        for call in calls:
            number = call.arguments.get("number") if isinstance(call, ToolCall) and call.name == "add" else None
            self.total += number if isinstance(number, int) else 0
            answers.append(answer_to(call, str(self.total) if isinstance(number, int) else "no number to add"))
        result = super().step({"role": "assistant", "content": "0"}, params)
        return {**result, "state": answers, "info": {**result["info"], "tools": self.tools()}}

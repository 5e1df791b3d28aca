"""Probes: the calls that a check of an environment makes, in this process or through a running service.

`ProbeRefused`: the environment rejected the request (ValueError, HTTP 4xx). `Failed`: a defect (any other exception, a
broken contract, HTTP 5xx).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from env_service.base import BaseEnv
from env_service.client import EnvClient, EnvRequestError, EnvServiceError, RetryPolicy
from env_service.contract import checked_action
from env_service.hosting.wire import Frame, FrameKind, WireDecoder, pack, unpack
from env_service.hosting.worker import InstanceHost


class ProbeRefused(Exception):
    pass


class Failed(Exception):
    pass


class Probe(Protocol):
    """The calls that a check makes; `env_class` is None if the environment is elsewhere."""

    env_class: type[BaseEnv] | None

    def tasks(self, split: str) -> list[str]: ...

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]: ...

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]: ...

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float: ...

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any: ...

    def release(self, instance_id: str) -> None: ...


class LocalProbe:
    """Calls the class in this process, through the code that hosts it in production."""

    def __init__(self, env_class: type[BaseEnv]) -> None:
        self.env_class: type[BaseEnv] | None = env_class
        self._instance_host = InstanceHost(env_class, max_reply_bytes=16 * 1024 * 1024)
        if env_class.isolation == "isolated":
            self._instance_host.warm_up()

    def tasks(self, split: str) -> list[str]:
        return list(self._call(FrameKind.PROFILE, {"split": split, "params": None}))

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        instance_id = f"check-{uuid.uuid4().hex}"
        return instance_id, self._call(
            FrameKind.CREATE, {"slot": instance_id, "instance_id": instance_id, "task_id": task_id, "params": params}
        )

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]:
        try:
            checked = checked_action(action)
        except ValueError as error:
            raise ProbeRefused(str(error)) from error
        return dict(self._call(FrameKind.STEP, {"slot": instance_id, "action": checked, "params": {}}))

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float:
        return float(self._call(FrameKind.EVALUATE, {"slot": instance_id, "messages": None, "params": params}))

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any:
        return self._call(FrameKind.INFO, {"slot": instance_id, "messages": None, "params": params or {}})

    def release(self, instance_id: str) -> None:
        self._call(FrameKind.CLOSE, {"slot": instance_id})

    def _call(self, kind: FrameKind, request: dict[str, Any]) -> Any:
        (reply,) = WireDecoder().feed(self._instance_host.answer(Frame(0, kind, pack(request))))
        body = unpack(reply.payload)
        if reply.kind is FrameKind.OK:
            return body
        if reply.kind is FrameKind.BAD_REQUEST:
            raise ProbeRefused(body["message"])
        raise Failed(f"{body['type']}: {body['message']}\n{body['traceback']}".rstrip())


class HttpProbe:
    def __init__(self, url: str, env_type: str) -> None:
        self.env_class: type[BaseEnv] | None = None
        self._client = EnvClient(url, retry=RetryPolicy(tries=4, budget_s=10.0))
        self._env_type = env_type

    def tasks(self, split: str) -> list[str]:
        return list(self._call(self._client.get_env_profile, self._env_type, split))

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        state = self._call(self._client.create_instance, self._env_type, task_id, None, params)
        return str(state["info"]["instance_id"]), state

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]:
        return dict(self._call(self._client.step, instance_id, action))

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float:
        return float(self._call(self._client.evaluate, instance_id, None, params))

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any:
        return self._call(self._client.get_tools_info, instance_id, None, params or {})

    def release(self, instance_id: str) -> None:
        self._call(self._client.release_instance, instance_id)

    def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except EnvRequestError as error:
            raise ProbeRefused(str(error)) from error
        except EnvServiceError as error:
            raise Failed(str(error)) from error


ODD_TEXTS = (
    "",
    " \n\t",
    "\U0001d518 \u0000 \u202e \U0001f600",
    "```python\nwhile",
    "<tool_call>{",
    "x" * 20_000,
    '{"name": "", "arguments": [[[[',
    '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
)


class Broken(Exception):
    """A promise of the contract does not hold; the message says which and how."""


class ProbeSubject(NamedTuple):
    probe: Probe
    split: str
    action: str


@contextlib.contextmanager
def episode(
    subject: ProbeSubject, task_id: str | None = None, params: dict[str, Any] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Open an instance of a task (default: the split's first), yield its id and init state, and release it."""
    chosen = task_id if task_id is not None else subject.probe.tasks(subject.split)[0]
    instance_id, state = subject.probe.create(chosen, params or {})
    try:
        yield instance_id, state
    finally:
        subject.probe.release(instance_id)


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def expect(condition: bool, problem: str) -> None:
    if not condition:
        raise Broken(problem)

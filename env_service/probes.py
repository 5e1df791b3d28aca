"""Two ways to try an environment: in this process, or through a running service. Both speak in outcomes, never in
surprises.

`Refused` is what the environment tells its caller (ValueError, HTTP 4xx), `Failed` is a defect (any other exception, a
broken contract, HTTP 5xx).
"""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from env_service.base import BaseEnv
from env_service.client import EnvClient, EnvRequestError, EnvServiceError, RetryPolicy
from env_service.wire import Decoder, Frame, Kind, pack, unpack
from env_service.worker import Desk


class Refused(Exception):
    """The environment says that the caller asked for something wrong."""


class Failed(Exception):
    """The environment failed."""


class Probe(Protocol):
    """The calls that a check makes."""

    def tasks(self, split: str) -> list[str]:
        """Return the task ids of a split."""

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Open an instance; returns its id and init state."""

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Apply an action."""

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float:
        """Grade the episode."""

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any:
        """Return facts."""

    def release(self, instance_id: str) -> None:
        """Close the instance."""


class LocalProbe:
    """Calls the class in this process, through the code that hosts it in production."""

    def __init__(self, env_class: type[BaseEnv]) -> None:
        self._desk = Desk(env_class, max_reply_bytes=16 * 1024 * 1024)
        if env_class.isolation == "isolated":
            self._desk.warm_up()

    def tasks(self, split: str) -> list[str]:
        """Return the task ids of a split."""
        return list(self._call(Kind.PROFILE, {"split": split, "params": None}))

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Open an instance; returns its id and init state."""
        instance_id = f"check-{uuid.uuid4().hex}"
        return instance_id, self._call(
            Kind.CREATE, {"place": instance_id, "instance_id": instance_id, "task_id": task_id, "params": params}
        )

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Apply an action."""
        return dict(self._call(Kind.STEP, {"place": instance_id, "action": action, "params": {}}))

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float:
        """Grade the episode."""
        return float(self._call(Kind.EVALUATE, {"place": instance_id, "messages": None, "params": params}))

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any:
        """Return facts."""
        return self._call(Kind.INFO, {"place": instance_id, "messages": None, "params": params or {}})

    def release(self, instance_id: str) -> None:
        """Close the instance."""
        self._call(Kind.CLOSE, {"place": instance_id})

    def _call(self, kind: Kind, request: dict[str, Any]) -> Any:
        (reply,) = Decoder().feed(self._desk.answer(Frame(0, kind, pack(request))))
        body = unpack(reply.payload)
        if reply.kind is Kind.OK:
            return body
        if reply.kind is Kind.BAD_REQUEST:
            raise Refused(body["message"])
        raise Failed(f"{body['type']}: {body['message']}\n{body['traceback']}".rstrip())


class HttpProbe:
    """Calls a running service."""

    def __init__(self, url: str, env_type: str) -> None:
        self._client = EnvClient(url, retry=RetryPolicy(tries=4, budget_s=10.0))
        self._env_type = env_type

    def tasks(self, split: str) -> list[str]:
        """Return the task ids of a split."""
        return list(self._call(self._client.get_env_profile, self._env_type, split))

    def create(self, task_id: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Open an instance; returns its id and init state."""
        state = self._call(self._client.create_instance, self._env_type, task_id, None, params)
        return str(state["info"]["instance_id"]), state

    def step(self, instance_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Apply an action."""
        return dict(self._call(self._client.step, instance_id, action))

    def evaluate(self, instance_id: str, params: dict[str, Any]) -> float:
        """Grade the episode."""
        return float(self._call(self._client.evaluate, instance_id, None, params))

    def info(self, instance_id: str, params: dict[str, Any] | None = None) -> Any:
        """Return facts."""
        return self._call(self._client.get_tools_info, instance_id, None, params or {})

    def release(self, instance_id: str) -> None:
        """Close the instance."""
        self._call(self._client.release_instance, instance_id)

    def _call(self, method: Any, *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except EnvRequestError as error:
            raise Refused(str(error)) from error
        except EnvServiceError as error:
            raise Failed(str(error)) from error

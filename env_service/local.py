"""Client of environments in this process, without a server or Ray, for a command that plays a few episodes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any

from env_service.client import EnvCrashed, EnvRequestError
from env_service.contract import checked_action
from env_service.hosting.wire import Frame, FrameKind, WireDecoder, pack, unpack
from env_service.hosting.worker import InstanceHost
from env_service.registry import load, resolve

MAX_REPLY_BYTES = 16 * 1024 * 1024


def is_shared(name: str, modules: Iterable[str] = ()) -> bool:
    """Whether an environment may share a process; imports it. Raises RegistryError."""
    return load(resolve([name], modules)[name]).isolation == "shared"


class LocalClient:
    """The methods of `AsyncEnvClient`, with instances in this process; for one event loop.

    `modules` are `NAME=package.module:Class` texts. Raises RegistryError. Only for classes with `isolation = "shared"`:
    others run an agent's code.
    """

    def __init__(self, names: Iterable[str], modules: Iterable[str] = ()) -> None:
        self._hosts = {
            name: InstanceHost(load(spec), MAX_REPLY_BYTES) for name, spec in resolve(names, modules).items()
        }
        self._instances: dict[str, tuple[str, asyncio.Lock]] = {}

    async def health(self) -> bool:
        return True

    async def get_env_profile(
        self, env_type: str, split: str = "train", params: dict[str, Any] | None = None
    ) -> list[str]:
        return list(
            await self._call(env_type, FrameKind.PROFILE, "/get_env_profile", {"split": split, "params": params})
        )

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = None, params: dict[str, Any] | None = None
    ) -> Any:
        name = instance_id or uuid.uuid4().hex
        request = {"slot": name, "instance_id": name, "task_id": task_id, "params": params or {}}
        state = await self._call(env_type, FrameKind.CREATE, "/create", request, name)
        self._instances[name] = env_type, asyncio.Lock()
        return state

    async def step(
        self, instance_id: str, action: Any, params: dict[str, Any] | None = None, step_index: int | None = None
    ) -> Any:
        try:
            checked = checked_action(action)
        except ValueError as error:
            raise EnvRequestError(str(error), url="/step", instance_id=instance_id) from error
        return await self._of(instance_id, FrameKind.STEP, "/step", {"action": checked, "params": params or {}})

    async def evaluate(self, instance_id: str, messages: Any = None, params: dict[str, Any] | None = None) -> float:
        asked = {"messages": messages, "params": params or {}}
        return float(await self._of(instance_id, FrameKind.EVALUATE, "/evaluate", asked))

    async def get_tools_info(self, instance_id: str, messages: Any = None, params: dict[str, Any] | None = None) -> Any:
        return await self._of(instance_id, FrameKind.INFO, "/get_info", {"messages": messages, "params": params or {}})

    async def release_instance(self, instance_id: str) -> bool:
        if instance_id not in self._instances:
            return False
        await self._of(instance_id, FrameKind.CLOSE, "/release", {})
        del self._instances[instance_id]
        return True

    async def close(self) -> None:
        for instance_id in list(self._instances):
            await self.release_instance(instance_id)

    async def _of(self, instance_id: str, kind: FrameKind, route: str, request: dict[str, Any]) -> Any:
        if instance_id not in self._instances:
            raise EnvRequestError("there is no such instance", url=route, instance_id=instance_id)
        env_type, turn = self._instances[instance_id]
        async with turn:
            return await self._call(env_type, kind, route, {"slot": instance_id, **request}, instance_id)

    async def _call(
        self, env_type: str, kind: FrameKind, route: str, request: dict[str, Any], instance_id: str | None = None
    ) -> Any:
        host = self._hosts.get(env_type)
        if host is None:
            raise EnvRequestError(
                f"environment {env_type!r} is not served; there are {', '.join(self._hosts)}", url=route
            )
        encoded = await asyncio.to_thread(host.answer, Frame(0, kind, pack(request)))
        (reply,) = WireDecoder().feed(encoded)
        body = unpack(reply.payload)
        if reply.kind is FrameKind.OK:
            return body
        if reply.kind is FrameKind.BAD_REQUEST:
            raise EnvRequestError(body["message"], url=route, instance_id=instance_id)
        raise EnvCrashed(f"{body['type']}: {body['message']}", url=route, instance_id=instance_id)

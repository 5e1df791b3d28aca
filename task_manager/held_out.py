"""The queries of tasks that are evaluated on, so that no synthetic task repeats one.

An environment lists ids only; what a task asks is in the opening of an instance, so each is opened once and released.
Kept in the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

from task_manager.graders.base import opening_of
from task_manager.journal import Journal, fingerprint

AT_ONCE = 16


class HeldOutClient(Protocol):
    """What is used of an environment client."""

    async def get_env_profile(
        self, env_type: str, split: str = ..., params: dict[str, Any] | None = ...
    ) -> list[str]: ...

    async def create_instance(
        self, env_type: str, task_id: str, instance_id: str | None = ..., params: dict[str, Any] | None = ...
    ) -> Any: ...

    async def release_instance(self, instance_id: str) -> bool: ...


async def held_out_queries(
    client: HeldOutClient,
    env_type: str,
    splits: Sequence[str],
    journal: Journal,
    *,
    list_params: Mapping[str, Any] | None = None,
    env_params: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Return what the tasks of some splits ask, in the environment's order, doubles left out; errors of the client pass
    through."""
    ids = [
        task_id
        for split in splits
        for task_id in await client.get_env_profile(env_type, split, dict(list_params or {}))
    ]
    slots = asyncio.Semaphore(AT_ONCE)

    async def read(task_id: str) -> str:
        key = fingerprint({"env_type": env_type, "task_id": task_id, "params": dict(env_params or {})})
        known = journal.get("query", key)
        if known is None:
            async with slots:
                known = await _asked(client, env_type, task_id, dict(env_params or {}))
            if journal.get("query", key) is None:
                journal.put("query", key, known)
        return str(known)

    return tuple(dict.fromkeys(await asyncio.gather(*(read(task_id) for task_id in dict.fromkeys(ids)))))


async def _asked(client: HeldOutClient, env_type: str, task_id: str, env_params: dict[str, Any]) -> str:
    instance_id = f"{task_id}-h-{uuid4().hex}"
    try:
        made = await client.create_instance(env_type, task_id, instance_id, env_params)
    finally:
        await asyncio.shield(client.release_instance(instance_id))
    info = made.get("info", {})
    told = info.get("query") or info.get("instruction")
    return str(told) if told else str(opening_of(made["state"])[-1]["content"])

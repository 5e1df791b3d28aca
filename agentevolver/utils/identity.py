"""Service identity: what a health route tells of its server, so that nobody takes a foreign one for his own.

A server tells its name, its version, what it serves and the launch that started it, which the launcher has put into its
environment. It is
a statement and no proof: whoever may listen on this machine's ports can say the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentevolver import __version__
from agentevolver.utils.processes import RUN_ID

ENVIRONMENTS = "agentevolver environment service"
EXPERIENCE = "agentevolver experience service"
TEACHER = "agentevolver offline teacher"
PAGE = "agentevolver page"


@dataclass(frozen=True)
class ServiceIdentity:
    """Who a server says it is; `launch_id` is None for one that no launcher started."""

    name: str
    version: str
    launch_id: str | None
    env_types: tuple[str, ...] = ()

    def __str__(self) -> str:
        serves = f" of {', '.join(self.env_types)}" if self.env_types else ""
        return (
            f"{self.name} {self.version}{serves}, started by "
            f"{f'launch {self.launch_id}' if self.launch_id else 'no launcher'}"
        )


def health_facts(name: str, *, env_types: Sequence[str] | None = None, status: str = "ok") -> dict[str, Any]:
    """Return the JSON body of a health route of this process."""
    facts = {"status": status, "name": name, "version": __version__, "launch_id": os.environ.get(RUN_ID)}
    return facts if env_types is None else {**facts, "env_types": list(env_types)}


def read_identity(body: object) -> ServiceIdentity | None:
    """Return who a health route's JSON says its server is, None if it does not say."""
    if not isinstance(body, dict) or not isinstance(body.get("name"), str) or not isinstance(body.get("version"), str):
        return None
    launch_id, env_types = body.get("launch_id"), body.get("env_types", [])
    if not (launch_id is None or isinstance(launch_id, str)) or not isinstance(env_types, list):
        return None
    return ServiceIdentity(body["name"], body["version"], launch_id, tuple(map(str, env_types)))

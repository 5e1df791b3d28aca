"""Settings of the environment service, with their defaults and the reasons for them."""

from __future__ import annotations

from dataclasses import dataclass, field

TOKEN_VARIABLE = "ENV_SERVICE_TOKEN"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings of one service; every field has a command line option of the same name.

    - `environments`: name -> `module:Class`, as `registry.resolve` returns it.
    - `ray_address`: address of a cluster to join; None starts a private one.
    - `max_instances`: open instances per environment; None means 4096 shared or 256 isolated ones.
    - `shared_hosts`: processes that share the instances of a shared environment.
    - `threads`: calls that one shared host runs at a time.
    - `warm`: isolated processes kept ready ahead of demand.
    - `memory_mb`: MiB that an isolated process may allocate beyond what it starts with; 0 means no limit, None what the
        class says.
    - `shared_memory_mb`: the same for a shared host.
    - `idle_s`: seconds after the end of its last call until an instance is released.
    - `max_body_bytes`, `max_reply_bytes`: limits of a request body and of one reply of an environment.
    """

    environments: dict[str, str]
    host: str = "127.0.0.1"
    port: int = 8080
    ray_address: str | None = None
    max_instances: int | None = None
    shared_hosts: int = 2
    threads: int = 32
    warm: int = 4
    memory_mb: int | None = None
    shared_memory_mb: int = 4096
    idle_s: float = 3600.0
    max_body_bytes: int = 2 * 1024 * 1024
    max_reply_bytes: int = 16 * 1024 * 1024
    pass_env: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)

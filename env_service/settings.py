"""Settings of the environment service."""

from __future__ import annotations

from dataclasses import dataclass, field

TOKEN_VARIABLE = "ENV_SERVICE_TOKEN"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Settings of one service; every field is a command line option."""

    environments: dict[str, str]  # name -> `module:Class`, as `registry.resolve` returns it
    host: str = "127.0.0.1"
    port: int = 8080
    ray_address: str | None = None  # of a cluster to join; None starts a private one
    max_instances: int | None = None  # open instances per environment; None: 4096 shared or 256 isolated ones
    shared_hosts: int = 2  # processes that share the instances of a shared environment
    threads: int = 32  # calls that one shared host runs at a time
    warm: int = 4  # isolated processes kept ready ahead of demand
    memory_mb: int | None = None  # MiB that an isolated process may add; 0: no limit; None: the class decides
    shared_memory_mb: int = 4096  # MiB that a shared host may add
    idle_s: float = 3600.0  # seconds after the end of its last call until an instance is released
    max_body_bytes: int = 2 * 1024 * 1024  # of a request
    max_reply_bytes: int = 16 * 1024 * 1024  # of one reply of an environment
    pass_env: tuple[str, ...] = ()  # secret variables that environments may see
    paths: tuple[str, ...] = ()  # without a token, parameters may name files in these folders only
    token: str | None = field(default=None, repr=False)

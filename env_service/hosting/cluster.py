"""Ray: joining a cluster or starting a private one, and placing host actors on its nodes."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from agentevolver.utils.net import ON_LOOPBACK
from env_service.hosting.host import FORK_SERVER_START_S, Description, HostActor, HostSpec
from env_service.hosting.processes import new_folder, remove_folder
from env_service.hosting.wire import Address

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 80 * 1024 * 1024
# Length of /ray/session_2026-11-20_19-56-39_840148_4194304/sockets/plasma_store, with a margin.
RAY_SOCKET_CHARS = 72
CALL_TIMEOUT_S = 60.0
# After the end of a host its node is avoided: Ray may take a minute to notice that a node is gone.
AVOID_S = 90.0
T = TypeVar("T")


class HostFailed(Exception):
    """A host could not be started or did not answer; the message says why."""


class HostHandle(Protocol):
    """A started host."""

    node: str

    async def describe(self) -> Description:
        """Return the environment class's declaration; raise HostFailed."""

    async def serve(self, address: Address, worker: str, secret: str) -> None:
        """Make the host dial the service as a shared worker; raise HostFailed."""

    async def start_fork_server(self) -> None:
        """Make the host ready to fork; raise HostFailed."""

    async def spawn(self, address: Address, workers: list[tuple[str, str]]) -> None:
        """Fork a process for each (worker, secret); raise HostFailed."""

    async def reap(self, workers: list[str]) -> None:
        """Kill forked workers that have not ended; raise HostFailed."""

    def kill(self) -> None:
        """End the host and its instances; never raises."""


class Launcher(Protocol):
    """Starts hosts; `HostCluster` does so by Ray."""

    async def launch(self, spec: HostSpec) -> HostHandle:
        """Start a host on the node with the fewest hosts; raise HostFailed."""

    async def crowded(self, node: str) -> bool:
        """Whether moving a host to another node would balance the nodes; raise HostFailed."""

    def is_remote(self, node: str) -> bool:
        """Whether workers of this node must dial over TCP."""

    @property
    def interface(self) -> str:
        """This node's address in the cluster."""

    @property
    def nodes(self) -> int:
        """Number of nodes at the start."""


class RayHost:
    def __init__(self, actor: Any, node: str, on_kill: Callable[[], None]) -> None:
        self.node = node
        self._actor = actor
        self._on_kill = on_kill

    async def describe(self) -> Description:
        return Description(*await self._ask("describe"))

    async def serve(self, address: Address, worker: str, secret: str) -> None:
        await self._ask("serve", address, worker, secret)

    async def start_fork_server(self) -> None:
        await self._ask("start_fork_server", timeout_s=FORK_SERVER_START_S + 10.0)

    async def spawn(self, address: Address, workers: list[tuple[str, str]]) -> None:
        await self._ask("spawn", address, workers)

    async def reap(self, workers: list[str]) -> None:
        await self._ask("reap", workers)

    def kill(self) -> None:
        import ray

        self._on_kill()
        try:
            ray.kill(self._actor)
        except (ray.exceptions.RayError, ValueError) as error:
            logger.info("a host was gone before it was killed: %s", error)

    async def _ask(self, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        import ray

        try:
            return await asyncio.wait_for(getattr(self._actor, method).remote(*arguments), timeout_s)
        except TimeoutError as error:
            raise HostFailed(f"a host did not answer `{method}` within {timeout_s:g} s") from error
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise HostFailed(f"{type(cause).__name__}: {cause}") from error
        except ray.exceptions.RayError as error:
            raise HostFailed(_cause(error)) from error


def _cause(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Actors that fail in __init__ report whole tracebacks: take the line with the error.
    telling = [line for line in lines if line.startswith(("env_service.", "ray.exceptions."))]
    return (telling or lines or [type(error).__name__])[-1]


class HostCluster:
    def __init__(self, address: str | None) -> None:
        self._address = address
        # All blocking Ray calls run in one thread that lives as long as the cluster: Ray ties the processes it starts
        # to the thread that started them.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray")
        self._actor_class: Any = None
        self._node = ""
        self._hosts: Counter[str] = Counter()
        self._avoided: dict[str, float] = {}
        self._folder: str | None = None
        self.interface = "127.0.0.1"
        self.nodes = 1

    async def start(self) -> None:
        """Join or start the cluster; raises ConnectionError or RuntimeError of Ray."""
        await self._in_thread(self._start)

    async def launch(self, spec: HostSpec) -> RayHost:
        import ray

        try:
            return await self._in_thread(partial(self._launch, spec))
        except (ray.exceptions.RayError, ConnectionError, RuntimeError, OSError) as error:
            raise HostFailed(f"Ray cannot start a host: {error}") from error

    async def crowded(self, node: str) -> bool:
        import ray

        try:
            return await self._in_thread(partial(self._is_crowded, node))
        except (ray.exceptions.RayError, ConnectionError, RuntimeError, OSError) as error:
            raise HostFailed(f"Ray does not list its nodes: {error}") from error

    def is_remote(self, node: str) -> bool:
        return node != self._node

    async def stop(self) -> None:
        await self._in_thread(self._stop)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _start(self) -> None:
        if self._address is None:
            os.environ.update(ON_LOOPBACK)
        import ray

        namespace = f"env_service-{secrets.token_hex(4)}"
        common: dict[str, Any] = {"namespace": namespace, "log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a private helper cluster sends no usage reports
            self._folder = new_folder(RAY_SOCKET_CHARS)
            private = {
                "address": "local",
                "num_cpus": 1,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
            # Ray makes its folder accessible to everybody, so give it one inside the private folder.
            ray.init(_temp_dir=f"{self._folder}/ray", **private, **common)
        else:
            ray.init(address=self._address, **common)
        context = ray.get_runtime_context()
        self._node = context.get_node_id()
        self.interface = ray.util.get_node_ip_address()
        self.nodes = sum(node["Alive"] for node in ray.nodes())
        # num_cpus=0: neither a trainer that reserved every CPU of a shared cluster nor a 2-core machine can keep hosts
        # waiting.
        self._actor_class = ray.remote(num_cpus=0, max_restarts=0, enable_task_events=False)(HostActor)
        logger.info("Ray is ready at %s (namespace %s)", context.gcs_address, namespace)

    def _launch(self, spec: HostSpec) -> RayHost:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        alive = self._alive()
        if not alive:
            raise HostFailed("the Ray cluster has no node that is alive")
        node = self._emptiest(alive)
        self._hosts[node] += 1
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._actor_class.options(scheduling_strategy=strategy).remote(spec)
        return RayHost(actor, node, partial(self._ended, node))

    def _alive(self) -> list[str]:
        import ray

        return [node["NodeID"] for node in ray.nodes() if node["Alive"]]

    def _emptiest(self, alive: list[str]) -> str:
        now = time.monotonic()
        return min(alive, key=lambda node: (self._avoided.get(node, 0.0) > now, self._hosts[node], node != self._node))

    def _is_crowded(self, node: str) -> bool:
        return self._hosts[node] > self._hosts[self._emptiest([*self._alive(), node])] + 1

    def _ended(self, node: str) -> None:
        self._hosts[node] -= 1
        self._avoided[node] = time.monotonic() + AVOID_S

    def _stop(self) -> None:
        import ray

        ray.shutdown()
        remove_folder(self._folder)

"""Instance service: create, step, evaluate, get_info, release and get_env_profile, as the routes call them.

An instance id belongs to one instance until its release; calls on an instance run one at a time; a numbered step runs
at most once; a call ends within `call_timeout_s`; a failed instance's slot becomes free. Failures are `ServiceError`s.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import secrets
import time
from typing import Any

from agentevolver.utils.secrets import SECRETS
from env_service.errors import (
    BadRequest,
    CallTimeout,
    EnvironmentFailed,
    Full,
    InstanceExists,
    InstanceLost,
    ProcessEnded,
    ServiceError,
    Unavailable,
    UnknownInstance,
)
from env_service.hosting.cluster import Launcher
from env_service.hosting.host import HostSpec
from env_service.hosting.instance import Instance
from env_service.hosting.isolated_pool import IsolatedPool
from env_service.hosting.links import CallTooLong, LinkServer, WorkerGone
from env_service.hosting.metrics import ServiceMetrics
from env_service.hosting.pool import Site, Worker, WorkerPool, watched
from env_service.hosting.shared_pool import SharedPool
from env_service.hosting.wire import FrameKind, WireError, pack, unpack
from env_service.parameters import inside, paths_in
from env_service.settings import ServiceSettings

logger = logging.getLogger(__name__)

MAX_INSTANCES = {"shared": 4096, "isolated": 256}
CLOSE_TIMEOUT_S = 10.0
STOP_PATIENCE_S = 3.0
SWEEP_S = 15.0
FIRST_CALL_WAITS_S = (0.05, 0.25)
_INSTANCE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@#+=~-]{0,199}")


class EnvService:
    """The pools and instances of one service, on one event loop."""

    def __init__(self, settings: ServiceSettings, launcher: Launcher) -> None:
        self.settings = settings
        self.metrics = ServiceMetrics()
        self.instances: dict[str, Instance] = {}
        self._launcher = launcher
        self._link_server = LinkServer()
        self._pools: dict[str, WorkerPool] = {}
        self._taken: dict[str, int] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Start a pool for each environment; raise HostFailed if one cannot be hosted."""
        await self._link_server.start()
        pools = await asyncio.gather(
            *(self._start_pool(name, spec) for name, spec in self.settings.environments.items())
        )
        self._pools = dict(zip(self.settings.environments, pools, strict=True))
        self._sweeper = watched(self._sweep_for_ever(), "sweep idle instances")

    async def stop(self) -> None:
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        releases = [self.release(instance_id, patience_s=STOP_PATIENCE_S) for instance_id in list(self.instances)]
        await asyncio.gather(*releases, return_exceptions=True)
        await asyncio.gather(*(pool.stop() for pool in self._pools.values()), return_exceptions=True)
        await self._link_server.stop()

    def not_ready(self) -> str | None:
        """Return why no instance can be created now, or None. Being full is not a reason."""
        if self._stopping:
            return "stopping"
        if not self._pools:
            return "starting"
        down = [name for name, pool in self._pools.items() if not pool.ready]
        return f"no host for {', '.join(down)}" if down else None

    async def get_env_profile(self, env_type: str | None, params: dict[str, Any]) -> bytes:
        """Return the JSON list of task ids of `params["split"]` (default train)."""
        pool = self._pool(env_type)
        split = params.get("split", "train")
        if not isinstance(split, str):
            raise BadRequest(f"params.split must be a text, got {split!r}")
        rest = {key: value for key, value in params.items() if key != "split"}
        slot = f"profile-{secrets.token_hex(4)}"
        worker, tasks = await self._first_call(pool, slot, FrameKind.PROFILE, {"split": split, "params": rest or None})
        pool.release(worker, slot)
        return tasks

    async def create(
        self,
        env_type: str | None,
        task_id: str,
        instance_id: str | None,
        params: dict[str, Any],
        create_key: str | None = None,
    ) -> bytes:
        """Create an instance and return its init state."""
        pool = self._pool(env_type)
        instance_id = instance_id or f"exp_{int(time.time())}_{secrets.token_hex(4)}"
        if not _INSTANCE_ID.fullmatch(instance_id):
            raise BadRequest(
                f"instance_id {instance_id[:80]!r} must be 1 to 200 letters, digits or _.:@#+=~-, and not start with "
                "a dot"
            )
        known = self.instances.get(instance_id)
        if known is not None:
            # The same `create_key` again is a retry of a lost reply: it gets the first answer instead of 409.
            if create_key is None or known.create_key != create_key or known.created is None:
                raise InstanceExists(f"instance {instance_id!r} exists; release it first or choose another id")
            # A client that disconnects must not cancel the create that others wait for.
            return await asyncio.shield(known.created)
        instance = Instance(instance_id, pool.spec.env_type, task_id, create_key)
        self._admit(pool)
        self.instances[instance_id] = instance
        instance.created = asyncio.create_task(self._open(instance, pool, params))
        instance.created.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(instance.created)

    async def step(
        self, instance_id: str, action: dict[str, Any], params: dict[str, Any], step_index: int | None
    ) -> bytes:
        """Apply an action, at most once with a `step_index`."""
        instance = self._instance(instance_id)
        async with instance.turn() as worker:
            if step_index is not None and (answer := instance.ledger.recall(step_index)) is not None:
                return answer
            request = {"slot": instance.slot, "action": action, "params": params}
            try:
                result = await self._call(self._pools[instance.env_type], worker, FrameKind.STEP, request, instance)
            except EnvironmentFailed as error:
                if step_index is not None:
                    instance.ledger.record(step_index, error)
                raise
            instance.steps += 1
            instance.created = None
            if step_index is not None:
                instance.ledger.record(step_index, result)
            return result

    async def evaluate(self, instance_id: str, messages: list[Any] | None, params: dict[str, Any]) -> bytes:
        return await self._ask(instance_id, FrameKind.EVALUATE, messages, params)

    async def get_info(self, instance_id: str, messages: list[Any] | None, params: dict[str, Any]) -> bytes:
        return await self._ask(instance_id, FrameKind.INFO, messages, params)

    async def release(self, instance_id: str, patience_s: float = math.inf) -> bool:
        """Close an instance and free its slot; False if there is none. Never fails.

        Waits for a running call, at most for its time limit or `patience_s`.
        """
        instance = self.instances.get(instance_id)
        if instance is None or instance.closing:
            return False
        instance.closing = True
        pool_time_s = self._pools[instance.env_type].description.call_timeout_s + 1.0
        if instance.created is not None and not instance.created.done():
            await asyncio.wait({instance.created}, timeout=min(patience_s, pool_time_s))
        if self.instances.pop(instance_id, None) is None:
            return False
        async with instance.last_turn(min(patience_s, pool_time_s)) as free:
            if free and instance.worker is not None:
                await self._close(instance, instance.worker, min(CLOSE_TIMEOUT_S, patience_s, pool_time_s))
        self._give_back(instance)
        return True

    # -- one instance

    async def _open(self, instance: Instance, pool: WorkerPool, params: dict[str, Any]) -> bytes:
        request = {
            "slot": instance.slot,
            "instance_id": instance.instance_id,
            "task_id": instance.task_id,
            "params": params,
        }
        try:
            worker, state = await self._first_call(pool, instance.slot, FrameKind.CREATE, request)
        except BaseException:
            if self.instances.get(instance.instance_id) is instance:
                del self.instances[instance.instance_id]
            self._taken[pool.spec.env_type] -= 1
            raise
        instance.worker = worker
        instance.last_used = time.monotonic()
        if self.instances.get(instance.instance_id) is not instance:
            await self._close(instance, worker, CLOSE_TIMEOUT_S)
            self._give_back(instance)
            raise UnknownInstance(f"instance {instance.instance_id!r} was released while it was being created")
        if not worker.link.open:
            self._lose(instance, "its process ended")
        return state

    async def _close(self, instance: Instance, worker: Worker, timeout_s: float) -> None:
        try:
            reply = await worker.link.call(FrameKind.CLOSE, pack({"slot": instance.slot}), timeout_s)
        except (WorkerGone, CallTooLong) as error:
            logger.warning(
                "close() of instance %s did not end well: %s", instance.instance_id, error or "it took too long"
            )
            return
        if reply.kind is not FrameKind.OK:
            logger.warning("close() of instance %s failed: %s", instance.instance_id, reply.payload.decode())

    def _give_back(self, instance: Instance) -> None:
        # Taken away first, so that a second call frees nothing.
        worker, instance.worker = instance.worker, None
        if worker is not None:
            self._taken[instance.env_type] -= 1
            self._pools[instance.env_type].release(worker, instance.slot)

    def _lose(self, instance: Instance, reason: str) -> InstanceLost:
        """Give an instance up; later calls raise the returned error until the release."""
        if instance.lost is None:
            error_id = secrets.token_hex(6)
            logger.error(
                "instance %s (task %s) is lost: %s [%s]", instance.instance_id, instance.task_id, reason, error_id
            )
            instance.lost = InstanceLost(
                f"instance {instance.instance_id!r} of {instance.env_type!r} is lost: {reason}; release it and create "
                "another",
                error_id=error_id,
            )
            self.metrics.lost.labels(instance.env_type).inc()
            self._give_back(instance)
        return instance.lost

    def _worker_lost(self, worker: Worker) -> None:
        for instance in list(self.instances.values()):
            if instance.worker is worker:
                self._lose(instance, f"its process (pid {worker.link.pid}) ended")

    # -- calls

    async def _first_call(
        self, pool: WorkerPool, slot: str, kind: FrameKind, request: dict[str, Any]
    ) -> tuple[Worker, bytes]:
        """Take a worker and make an instance's first call on it; if that succeeds, the worker stays reserved for the
        instance."""
        waits_s = list(FIRST_CALL_WAITS_S if pool.description.isolation == "isolated" else ())
        while True:
            worker = await pool.acquire(slot)
            try:
                return worker, await self._call(pool, worker, kind, request, None)
            except BaseException as error:
                pool.release(worker, slot)
                # An isolated process that ended held no other instance, and its fork host may just have been killed:
                # try the next one.
                if not isinstance(error, ProcessEnded) or not waits_s:
                    raise
            await asyncio.sleep(waits_s.pop(0))

    async def _ask(
        self, instance_id: str, kind: FrameKind, messages: list[Any] | None, params: dict[str, Any]
    ) -> bytes:
        instance = self._instance(instance_id)
        async with instance.turn() as worker:
            request = {"slot": instance.slot, "messages": messages, "params": params}
            return await self._call(self._pools[instance.env_type], worker, kind, request, instance)

    async def _call(
        self, pool: WorkerPool, worker: Worker, kind: FrameKind, request: dict[str, Any], instance: Instance | None
    ) -> bytes:
        """Call an environment and return the JSON of its answer; every failure becomes a ServiceError."""
        name = pool.spec.env_type
        try:
            # The service reads files as its owner, and without a token for anybody.
            for path in paths_in(request["params"]) if not self.settings.token else ():
                inside(path, self.settings.paths)
            payload = pack(request)
        except ValueError as error:
            raise BadRequest(f"params name a file: {error}; serve it with --path FOLDER, or use a token") from error
        except TypeError as error:
            raise BadRequest(f"the request cannot be passed on as JSON: {error}") from error
        started = time.perf_counter()
        try:
            reply = await worker.link.call(kind, payload, pool.description.call_timeout_s)
        except WorkerGone:
            if instance is not None:
                raise self._lose(
                    instance, f"its process (pid {worker.link.pid}) ended during {kind.name.lower()}"
                ) from None
            error_id = secrets.token_hex(6)
            logger.error("environment %r: process %d ended during %s [%s]", name, worker.link.pid, kind.name, error_id)
            raise ProcessEnded(f"the process of {name!r} ended during {kind.name.lower()}", error_id=error_id) from None
        except CallTooLong:
            detail = (
                f"environment {name!r} took longer than {pool.description.call_timeout_s:g} s for {kind.name.lower()}"
            )
            if instance is not None:
                self._lose(instance, detail)
                detail += ", and its instance is lost"
            raise CallTimeout(f"{detail}; the call was abandoned", error_id=secrets.token_hex(6)) from None
        except WireError as error:
            raise BadRequest(str(error)) from error
        finally:
            self.metrics.calls.labels(name, kind.name.lower()).observe(time.perf_counter() - started)
        if reply.kind is FrameKind.OK:
            return reply.payload
        raise self._failure(name, kind, reply.kind, reply.payload)

    def _failure(self, name: str, kind: FrameKind, outcome: FrameKind, payload: bytes) -> ServiceError:
        try:
            facts = unpack(payload)
            message = str(facts["message"])
            if outcome is FrameKind.BAD_REQUEST:
                return BadRequest(message)
            error_type, trace = str(facts["type"]), str(facts["traceback"])
        except (WireError, KeyError, TypeError):
            error_type, message, trace = "(garbled report)", "", payload[:2000].decode("utf-8", "replace")
        error_id = secrets.token_hex(6)
        logger.error(
            "environment %r failed in %s: %s: %s [%s]\n%s",
            name,
            kind.name.lower(),
            error_type,
            message,
            error_id,
            trace,
        )
        return EnvironmentFailed(
            f"environment {name!r} failed in {kind.name.lower()} ({error_type}); the service's log has the details "
            f"under {error_id}",
            error_id=error_id,
        )

    # -- bookkeeping

    async def _start_pool(self, name: str, module_class: str) -> WorkerPool:
        settings, launcher = self.settings, self._launcher
        spec = HostSpec(
            name,
            module_class,
            threads=settings.threads,
            memory_mb=settings.memory_mb,
            shared_memory_mb=settings.shared_memory_mb,
            max_reply_bytes=settings.max_reply_bytes,
            pass_env=settings.pass_env,
            secrets=os.environ.get(SECRETS),
        )
        first = await launcher.launch(spec)
        site = Site(spec, await first.describe(), launcher, self._link_server, self._worker_lost)
        pool: WorkerPool
        if site.description.isolation == "shared":
            pool = SharedPool(site, first, hosts=max(settings.shared_hosts, launcher.nodes))
        else:
            pool = IsolatedPool(site, first, fork_hosts=launcher.nodes, warm=settings.warm)
        self._taken[name] = 0
        await pool.start()
        return pool

    def limit(self, pool: WorkerPool) -> int:
        return self.settings.max_instances or MAX_INSTANCES[pool.description.isolation]

    def _admit(self, pool: WorkerPool) -> None:
        name = pool.spec.env_type
        if self._taken[name] >= self.limit(pool):
            raise Full(
                f"environment {name!r} has {self._taken[name]} instances open, its limit; release some, come back "
                "later, "
                "or start the service with a larger --max-instances",
                retry_after_s=1.0,
            )
        self._taken[name] += 1

    def _pool(self, env_type: str | None) -> WorkerPool:
        if self._stopping or not self._pools:
            raise Unavailable(f"the service is {self.not_ready()}", retry_after_s=1.0)
        if env_type is None and len(self._pools) == 1:
            return next(iter(self._pools.values()))
        pool = self._pools.get(env_type or "")
        if pool is None:
            served = ", ".join(sorted(self._pools))
            raise BadRequest(
                f"environment {env_type!r} is not served here (served: {served}); start the service with --env NAME"
            )
        return pool

    def _instance(self, instance_id: str) -> Instance:
        instance = self.instances.get(instance_id)
        if instance is None:
            raise UnknownInstance(
                f"instance {instance_id!r} does not exist: create it first; released and expired ones are gone"
            )
        return instance

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_S, self.settings.idle_s / 4))
            await self.sweep()

    def observe(self) -> None:
        for name, pool in self._pools.items():
            self.metrics.open.labels(name).set(self._taken[name])
            self.metrics.workers.labels(name).set(len(pool.workers))

    async def sweep(self) -> None:
        """Release instances idle for longer than `idle_s`. A failing close does not stop the sweep."""
        deadline = time.monotonic() - self.settings.idle_s
        idle = [
            i.instance_id for i in self.instances.values() if not i.busy and not i.closing and i.last_used < deadline
        ]
        for instance_id in idle:
            logger.warning("instance %s was idle for more than %g s and is released", instance_id, self.settings.idle_s)
        await asyncio.gather(*(self.release(instance_id) for instance_id in idle), return_exceptions=True)

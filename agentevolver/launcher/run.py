"""Execution of a plan: services in order, then the main job; everything is stopped in reverse order, whatever happens.

A task watches each service. The main job, the watches and the signals are awaited together; the first to end decides.
The first Ctrl-C or SIGTERM stops in order, the second one kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import select
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from agentevolver.config.training import RetentionSettings
from agentevolver.config.trees import one_line
from agentevolver.launcher.experiment import forget_listing
from agentevolver.launcher.guard import end_guard, start_guard
from agentevolver.launcher.logs import EVERY_S, LogKeeper, keep_worker_logs, piece_of, unintended_exits
from agentevolver.launcher.plan import Plan, masked
from agentevolver.launcher.records import LaunchRecord, RunRecord, RunRegistry, experiment_lock, now, remove_temp_dir
from agentevolver.launcher.stack import PYTHON, ServiceSpec
from agentevolver.launcher.supervise import Child, ServiceDied, SupervisedService, describe_exit, leave_behind
from agentevolver.trainer.preload import SOCKET, write_executable
from agentevolver.utils.errors import Interrupted, LaunchError
from agentevolver.utils.files import PRIVATE_FILE, write_text
from agentevolver.utils.health import all_unhealthy, examine
from agentevolver.utils.ownership import sign
from agentevolver.utils.processes import ProcessId, attached, end_carriers, identify, noted, remove_unused
from agentevolver.utils.secrets import write_secrets

logger = logging.getLogger(__name__)


_CHUNK = 65_536
CLOSE_WAIT_S = 3.0
SHOW_CURSOR = b"\x1b[?25h"


class Tee:
    """Copies the output that a child writes to `out` and `err`, byte for byte, to a file and the console.

    A thread copies, so a blocked console (paused terminal, pager) does not delay supervision. A closed console is
    dropped.
    """

    def __init__(self, log: Path, console_out: int, console_err: int) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._path = log
        self._log = log.open("ab", buffering=0)
        out_end, self.out = os.pipe()
        err_end, self.err = os.pipe()
        self._consoles: dict[int, int | None] = {out_end: console_out, err_end: console_err}
        self._terminal = console_out if os.isatty(console_out) else None
        self._muted = False
        self._thread = threading.Thread(target=self._copy, name="tee", daemon=True)

    def __enter__(self) -> Tee:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()
        # Ends at once, unless the console blocks or a process outside of the run still holds a pipe.
        self._thread.join(CLOSE_WAIT_S)
        if self._terminal is not None:
            # A progress bar that was cut off leaves the cursor hidden.
            _write_all(self._terminal, SHOW_CURSOR)

    def mute(self) -> None:
        self._muted = True

    def detach(self) -> None:
        """Close this process's ends of the pipes, so that copying ends with the last writer."""
        for descriptor in {self.out, self.err} - {-1}:
            os.close(descriptor)
        self.out = self.err = -1

    def _copy(self) -> None:
        # Whatever happens to the targets, the pipes are emptied: a full one would stop the job.
        log: int | None = self._log.fileno()
        with selectors.DefaultSelector() as pipes:
            for end in self._consoles:
                pipes.register(end, selectors.EVENT_READ)
            while pipes.get_map():
                for key, _ in pipes.select():
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        pipes.unregister(key.fd)
                        os.close(key.fd)
                        continue
                    if log is not None and (problem := _write_all(log, chunk)) is not None:
                        logger.error("cannot write to %s any more: %s", self._path, problem.strerror)
                        log = None
                    console = self._consoles[key.fd]
                    if console is not None and not self._muted and _write_all(console, chunk) is not None:
                        self._consoles[key.fd] = None
        self._log.close()


def _write_all(descriptor: int, data: bytes) -> OSError | None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # a terminal that something else made non-blocking
            select.select([], [descriptor], [])
        except OSError as problem:
            return problem
    return None


def keep_history(log: Path) -> None:
    """Rename the log of an earlier launch to its last modification time."""
    if log.exists() and log.stat().st_size:
        log.rename(piece_of(log, log.stat().st_mtime))


T = TypeVar("T")


def carry_out(plan: Plan, registry: RunRegistry, argv: list[str], root: Path) -> int:
    """Execute a plan. Return the main job's exit code, or 128 + the signal that stopped the run.

    Raises:
        LaunchError: the run could not start or continue. Everything has been stopped.
    """
    try:
        with private_files(plan), experiment_lock(plan.experiment_dir, registry):
            _clear_away(plan, registry)
            record = LaunchRecord(plan.experiment_dir, plan.run_id, argv, root, masked(plan.config))
            code = LaunchError.exit_code
            try:
                code = asyncio.run(_go(plan, registry))
            finally:
                record.finish(code)
    except OSError as error:
        logger.debug("the launcher's traceback", exc_info=error)
        raise LaunchError(f"run {plan.run_id} cannot start or go on: {one_line(error)}") from error
    return code


def _clear_away(plan: Plan, registry: RunRegistry) -> None:
    """Reap runs whose launcher and guard were both killed.

    Raises:
        LaunchError: a process that writes to this plan's experiment cannot be ended.
    """
    for record in registry.records():
        if record.abandoned:
            try:
                logger.warning("run %s: its launcher was killed; %s", record.run_id, registry.reap(record))
            except LaunchError as error:
                if record.experiment_dir == str(plan.experiment_dir):
                    raise
                logger.warning("%s", error)


@contextmanager
def private_files(plan: Plan) -> Iterator[None]:
    """Make new files readable by their owner only, unless the plan shares them."""
    # Folders above are made with the user's own umask: other experiments may lie there.
    plan.experiment_dir.parent.mkdir(parents=True, exist_ok=True)
    before = os.umask(0o077)
    try:
        if plan.shared_files:
            os.umask(before)
        yield
    finally:
        os.umask(before)


async def _go(plan: Plan, registry: RunRegistry) -> int:
    # Started before anything that the guard may have to reap.
    guard = start_guard(registry, plan.run_id)
    try:
        run = _Run(plan, _Ledger(plan, registry), _Signals(), guard)
        try:
            _write_config(plan)
            return await run.work()
        except Interrupted as interrupt:
            return interrupt.exit_code if plan.job is not None else 0
        finally:
            await run.stop()
    finally:
        end_guard(guard)


@dataclass
class _Signals:
    """Stop signals: the first one resolves `first`, the second one sets `hurry`."""

    first: asyncio.Future[signal.Signals] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Ignored signals stay ignored, as under nohup or after `&` in a script. SIGTERM is always handled.
            if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.first.done():
            logger.info("%s again: killing", number.name)
            self.hurry.set()
        else:
            logger.info("%s: stopping in order, which takes seconds; a second signal kills at once", number.name)
            self.first.set_result(number)


class _Ledger:
    """The run's record and private files on disk, from before its first process until after its last.

    Raises:
        LaunchError: a file cannot be written. No file is left behind.
    """

    def __init__(self, plan: Plan, registry: RunRegistry) -> None:
        launcher = identify(os.getpid())
        assert launcher is not None
        self.registry = registry
        self._plan = plan
        self._record = RunRecord(
            run_id=plan.run_id,
            experiment_dir=str(plan.experiment_dir),
            launcher=launcher,
            started_at=now(),
            temp_dir=None if plan.temp_dir is None else str(plan.temp_dir),
            dashboard=plan.dashboard,
        )
        try:
            self._write_files(plan)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                self.close()
            raise LaunchError(f"cannot write the files of run {plan.run_id}: {one_line(error)}") from error

    def _write_files(self, plan: Plan) -> None:
        self.registry.write(self._record)
        if plan.temp_dir is not None:
            plan.temp_dir.mkdir(mode=0o700)
            (plan.temp_dir / "tmp").mkdir(mode=0o700)
            (plan.temp_dir / PYTHON).symlink_to(sys.prefix)
            if plan.job is not None and SOCKET in plan.job.env:
                write_executable(plan.job.env[SOCKET])
        if plan.token is not None:
            write_text(plan.token, secrets.token_hex(32), mode=PRIVATE_FILE)
        if plan.secrets:
            write_secrets(self.registry.secrets_path(plan.run_id), {name: os.environ[name] for name in plan.secrets})

    def started(self, name: str, process: ProcessId) -> None:
        self._record = self._record.with_process(name, process)
        self.registry.write(self._record)

    def close(self) -> None:
        if self._plan.temp_dir is not None:
            remove_temp_dir(self._plan.temp_dir)
        self.registry.forget(self._plan.run_id)


class _Run:
    def __init__(self, plan: Plan, ledger: _Ledger, signals: _Signals, guard: subprocess.Popen[bytes]) -> None:
        self._plan = plan
        self._ledger = ledger
        self._signals = signals
        self._services: list[SupervisedService] = []
        self._watches: list[asyncio.Task[Any]] = []
        self._job: Child | None = None
        self._ended_well = False
        self._ended_by_itself = False
        self._guard = guard
        retention = RetentionSettings.model_validate(plan.config.get("retention", {}))
        self._log_keeper = LogKeeper(plan.logs, plan.temp_dir, retention)
        self._keeping_logs = asyncio.create_task(self._keep_logs_within_bounds())

    async def work(self) -> int:
        """Start the services, run the main job and return its exit code."""
        for text in self._plan.reused:
            logger.info("using %s", text)
        for spec in self._plan.services:
            if spec.shared and await all_unhealthy(spec.health_urls) is None:
                logger.info("using the %s that runs already (%s), %s", spec.name, spec.title, await self._whose(spec))
                continue
            keep_history(spec.log)
            logger.info("starting %s (%s)", spec.name, spec.title)
            service = SupervisedService(spec, self._plan.run_id, self._ledger.started)
            self._services.append(service)
            try:
                await self._unless_something_ends(service.bring_up())
            except ServiceDied:
                # Another service may have died while this one was starting.
                if spec.needed or service.state != "died":
                    raise
                logger.warning("the run goes on without %s", spec.name)
                continue
            self._watches.append(asyncio.create_task(service.watch(), name=spec.name))
        if self._plan.dashboard is not None:
            token = f" (its token: {self._plan.token})" if self._plan.token is not None else ""
            logger.info("Ray dashboard: %s%s", self._plan.dashboard, token)
        if self._plan.job is None:
            logger.info("everything is up; Ctrl-C stops it")
            await self._unless_something_ends(asyncio.get_running_loop().create_future())
        return await self._run_job()

    async def _whose(self, spec: ServiceSpec) -> str:
        """Describe the owner of a running service.

        Raises:
            LaunchError: the service should identify itself, but no launcher of this checkout started what answers.
        """
        url = spec.health_urls[0]
        if not spec.says_who:
            return f"which {url} names"
        identity = (await examine(url)).identity
        record = self._ledger.registry.serving(url, identity)
        if record is None:
            who = identity or "something that does not identify itself"
            raise LaunchError(
                f"{url} is answered by {who}, which no launcher of this checkout has started: "
                f"use it without --with-{spec.name}, or choose another port"
            )
        return f"which belongs to run {record.run_id} and ends with it"

    async def stop(self) -> None:
        """Stop everything in reverse order. The record is kept only if a process survives."""
        background = [*self._watches, self._keeping_logs]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        temp_dir = None if self._ended_well else self._plan.temp_dir
        # Read before anything is stopped, because afterwards every worker has ended.
        exits = {} if temp_dir is None else await asyncio.to_thread(unintended_exits, temp_dir)
        segments = await asyncio.to_thread(attached, self._plan.run_id)
        stay = [one.spec for one in self._services if one.spec.afterwards and one.state == "up"]
        survivors: set[ProcessId] = set()
        if self._job is not None:
            survivors |= await self._job.stop(self._signals.hurry)
        for service in reversed(self._services):
            survivors |= await service.stop(self._signals.hurry)
        # Ray may start workers for other processes even after its own SIGTERM (Ray 2.60).
        survivors |= await asyncio.to_thread(end_carriers, self._plan.run_id, 1.0)
        if temp_dir is not None:
            await asyncio.to_thread(keep_worker_logs, temp_dir, exits, self._plan.logs / "workers" / self._plan.run_id)
        end_guard(self._guard)
        if survivors:
            logger.error("these processes survive SIGKILL: %s", ", ".join(str(process.pid) for process in survivors))
        else:
            await asyncio.to_thread(
                remove_unused, segments | noted(self._ledger.registry.segments_path(self._plan.run_id))
            )
            self._ledger.close()
            if self._ended_by_itself:
                for spec in stay:
                    leave_behind(spec)

    async def _keep_logs_within_bounds(self) -> None:
        while True:
            await asyncio.to_thread(self._log_keeper.tidy)
            await asyncio.sleep(EVERY_S)

    async def _run_job(self) -> int:
        job = self._plan.job
        assert job is not None
        keep_history(job.log)
        logger.info("running %s (log: %s)", " ".join(job.argv[1:3]), job.log)
        logger.info("Ctrl-C stops in order; the same command goes on from the newest checkpoint")
        sys.stdout.flush()
        with Tee(job.log, sys.stdout.fileno(), sys.stderr.fileno()) as tee:
            try:
                self._job = await Child.start(job, self._plan.run_id, tee.out, tee.err)
                tee.detach()
                self._ledger.started(job.name, self._job.identity)
                code = await self._unless_something_ends(self._job.wait())
            finally:
                if self._signals.first.done():
                    tee.mute()
                # Stopped before the tee is left, because descendants of the job may hold the pipe open.
                if self._job is not None:
                    await self._job.stop(self._signals.hurry)
        self._ended_well, self._ended_by_itself = code == 0, True
        if code:
            logger.error("the main job %s (log: %s)", describe_exit(code), job.log)
        return code if code >= 0 else 128 - code

    async def _unless_something_ends(self, work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
        """Wait for `work`, unless a signal or the loss of a service comes first.

        Raises:
            Interrupted: a signal came.
            LaunchError: a service died for good.
        """
        task = asyncio.ensure_future(work)
        awaited: set[asyncio.Future[Any]] = {task, self._signals.first, *self._watches}
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if self._signals.first.done():
                raise Interrupted(self._signals.first.result())
            for watch in self._watches:
                if watch.done():
                    watch.result()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _write_config(plan: Plan) -> None:
    if plan.config_path.exists() and plan.config_path.read_text(encoding="utf-8") != plan.config_text:
        forget_listing(plan.experiment_dir, plan.config)
        keep_history(plan.config_path)
    write_text(plan.config_path, plan.config_text)
    sign(plan.config_path)

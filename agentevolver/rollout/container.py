"""The user's agent in its task's container (harbor's layout), and the task's tests in a fresh one.

A task folder holds `instruction.md`, `environment/` (Dockerfile), `tests/test.sh`, which writes a number to
`/logs/verifier/reward.txt`, and `task.toml` (`[verifier] timeout_sec`, `[environment] docker_image`).

The agent may have replaced any program of its container, so the tests see only its work folder (the image's WORKDIR,
else `/app`). Whatever the agent can cause gives 0 and never an error, which would leave the rollout ungraded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import posixpath
import shutil
import stat
import subprocess
import tarfile
import tempfile
import threading
import tomllib
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from agentevolver.rollout.agent import AgentFailed, Result
from agentevolver.rollout.command import TAIL_BYTES, Ran, filled, inherited, run_program, task_file, variables
from agentevolver.rollout.gateway.server import GatewayEndpoint
from agentevolver.rollout.world import LiveWorld
from agentevolver.types import Task
from task_manager.graders.base import GradingError

REWARD = "/logs/verifier/reward.txt"
TASK_FILE = "/logs/task.json"
_PATHS = ("/app", "/tests", "/logs")
_TESTS_S, _BUILD_S = 900.0, 1800.0
# Added to the agent's time limit: a container ends by itself if its worker has died.
_SPARE_S = 600
_COPY_S = 600.0
_WORK_BYTES, _REWARD_BYTES = 2**32, 1024


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """A task's folder; `tests_s` is the time limit of its tests, `image` a ready image or None."""

    path: Path
    tests_s: float = _TESTS_S
    image: str | None = None

    @classmethod
    def read(cls, path: Path) -> TaskFolder:
        """Read a task's folder. Raises GradingError if it has no tests or its task.toml is invalid."""
        if not (path / "tests" / "test.sh").is_file():
            raise GradingError(f"{path}: no tests/test.sh, so the task cannot be graded")
        told: dict[str, Any] = {}
        try:
            if (path / "task.toml").is_file():
                told = tomllib.loads((path / "task.toml").read_text(encoding="utf-8"))
            seconds = float(told.get("verifier", {}).get("timeout_sec", _TESTS_S))
        except (ValueError, TypeError, AttributeError) as error:
            raise GradingError(f"{path / 'task.toml'}: {error}") from error
        return cls(path, seconds, told.get("environment", {}).get("docker_image"))


class _NoGrade(Exception):
    """There is no grade, by the fault of the tests or of what the agent left."""


@dataclass(slots=True)
class ContainerAgent:
    """An agent that works in its task's container; placeholders such as `{query}` are filled into `words`."""

    words: Sequence[str]
    engine: ProcessEngine | CommandEngine
    timeout_s: float
    _gradable: set[Path] = field(default_factory=set)

    async def play(self, task: Task, endpoint: GatewayEndpoint, world: LiveWorld | None) -> Result:
        """Run the agent, then the task's tests.

        Raises AgentFailed, with the tests' result, if the agent failed; GradingError if the tests give no grade.
        """
        folder = TaskFolder.read(Path(str(task.metadata.get("info", {}).get("folder", ""))))
        with tempfile.TemporaryDirectory(prefix="task-") as place:
            told, work = Path(place) / "task.json", Path(place) / "work.tar"
            told.write_bytes(task_file(task, world))
            async with self.engine.box(folder, self.timeout_s + _SPARE_S) as box:
                await box.put(told, TASK_FILE)
                words = filled(self.words, task, endpoint, world, TASK_FILE)
                ran = await box.run(words, variables(endpoint, world, TASK_FILE))
                try:
                    await asyncio.to_thread(box.take_work, work)
                    refused = ""
                except (_NoGrade, tarfile.TarError, OSError) as error:
                    refused = f"the agent left no work folder that can be graded: {error}"
            result = await self._graded(folder, work, refused)
        try:
            ran.check(endpoint)
        except AgentFailed as error:
            raise AgentFailed(str(error), result) from error
        return result

    async def _graded(self, folder: TaskFolder, work: Path, refused: str) -> Result:
        try:
            if not refused:
                return await self._tested(folder, work)
        except _NoGrade as error:
            refused = str(error)
        # The tests grade the untouched environment or nothing: so it is known who is to blame, they or the agent.
        if folder.path not in self._gradable:
            try:
                await self._tested(folder, None)
            except _NoGrade as error:
                raise GradingError(refused) from error
            self._gradable.add(folder.path)
        return Result(0.0, refused)

    async def _tested(self, folder: TaskFolder, work: Path | None) -> Result:
        async with self.engine.box(folder, folder.tests_s + _SPARE_S) as box:
            if work is not None:
                try:
                    await asyncio.to_thread(box.give_work, work)
                except (tarfile.TarError, OSError, subprocess.TimeoutExpired) as error:
                    raise _NoGrade(f"{folder.path}: the agent's work folder cannot be copied: {error}") from error
            await box.put(folder.path / "tests", "/tests")
            try:
                async with asyncio.timeout(folder.tests_s):
                    ran = await box.run(["/bin/bash", "/tests/test.sh"], {})
            except TimeoutError as error:
                raise _NoGrade(f"{folder.path}: tests/test.sh did not end within {folder.tests_s:g} s") from error
            text = await asyncio.to_thread(box.read, REWARD)
        try:
            score = float((text or "").strip())
            if not 0.0 <= score <= 1.0:
                raise ValueError("not in 0..1")
        except ValueError as error:
            raise _NoGrade(
                f"{folder.path}: tests/test.sh ended with code {ran.code} and wrote {text!r} to {REWARD}, expected a "
                f"number in 0..1; it printed at last: {ran.tail or 'nothing'}"
            ) from error
        return Result(score if ran.code == 0 else 0.0, f"tests/test.sh ended with code {ran.code}")


def keep_work(source: IO[bytes], target: IO[bytes], folder: str) -> None:
    """Copy a tar stream of the work folder `folder` (its path in the container) without what is no plain data:
    devices, fifos, set-user-id bits, links to the tests or the reward. Raises _NoGrade, TarError."""
    size = 0
    with tarfile.open(fileobj=source, mode="r|") as read, tarfile.open(fileobj=target, mode="w") as kept:
        for member in read:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(folder), member.name))
            if path == folder and not member.isdir():
                raise _NoGrade(f"{folder} is not a folder")
            leads = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
            if not posixpath.join(path, "").startswith(posixpath.join(folder, "")) or (
                member.issym() and posixpath.join(leads, "").startswith(("/logs/", "/tests/"))
            ):
                continue
            if member.isreg() or member.isdir() or member.issym() or member.islnk():
                size += member.size
                if size > _WORK_BYTES:
                    raise _NoGrade(f"{folder} has more than {_WORK_BYTES} bytes")
                member.mode &= 0o777
                kept.addfile(member, read.extractfile(member) if member.isreg() else None)


# ---- a process in a container's place ----


# For tasks that need nothing of their image, and trusted agents: it isolates nothing, neither this machine nor the
# tests, which an agent's surviving process can reach. The paths `/app`, `/tests` and `/logs` become paths
# below the folder.
class ProcessEngine:
    """Runs a process in a folder in place of a container."""

    @asynccontextmanager
    async def box(self, task: TaskFolder, seconds: float) -> AsyncIterator[_Folder]:
        """Open a folder with the contents of the task's environment."""
        root = Path(tempfile.mkdtemp(prefix="box-"))
        try:
            box = _Folder(root)
            ignored = shutil.ignore_patterns("Dockerfile", "docker-compose*")
            if (task.path / "environment").is_dir():
                await asyncio.to_thread(shutil.copytree, task.path / "environment", root / "app", ignore=ignored)
            for name in ("app", "logs/verifier", "home"):
                (root / name).mkdir(parents=True, exist_ok=True)
            yield box
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, root, True))


@dataclass(slots=True)
class _Folder:
    root: Path

    async def run(self, words: Sequence[str], environ: Mapping[str, str]) -> Ran:
        own = {name: self._here(value) for name, value in environ.items()}
        home = str(self.root / "home")
        every = {**inherited(os.environ), **own, "HOME": home, "TMPDIR": home}
        return await run_program([self._here(word) for word in words], every, self.root / "app")

    async def put(self, source: Path, target: str) -> None:
        await asyncio.to_thread(self._put, source, self.root / target.lstrip("/"))

    def _put(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            shutil.copy(source, target)
            return
        shutil.copytree(source, target)
        for path in target.rglob("*"):
            with contextlib.suppress(UnicodeDecodeError):
                if path.is_file():
                    path.write_text(self._here(path.read_text(encoding="utf-8")), encoding="utf-8")

    def take_work(self, file: Path) -> None:
        with tempfile.TemporaryFile() as whole, file.open("wb") as target:
            with tarfile.open(fileobj=whole, mode="w") as packed:
                packed.add(self.root / "app", "app")
            whole.seek(0)
            keep_work(whole, target, "/app")

    def give_work(self, file: Path) -> None:
        shutil.rmtree(self.root / "app")
        with tarfile.open(file) as work:
            work.extractall(self.root, filter="tar")

    def read(self, path: str) -> str | None:
        """Return a file's text; None if it is not a regular file of at most 1 KiB."""
        try:
            opened = os.open(self.root / path.lstrip("/"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with open(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                return None
            text = file.read(_REWARD_BYTES + 1)
        return text.decode("utf-8", "replace") if len(text) <= _REWARD_BYTES else None

    def _here(self, text: str) -> str:
        # The container's paths become paths below this folder.
        for path in _PATHS:
            text = text.replace(f"{path}/", f"{self.root}{path}/")
        return text


# ---- docker, podman ----


@dataclass(slots=True)
class CommandEngine:
    """A container engine with docker's command line (`docker` or `podman`)."""

    program: str
    _building: dict[str, asyncio.Lock] = field(default_factory=dict)

    @asynccontextmanager
    async def box(self, task: TaskFolder, seconds: float) -> AsyncIterator[_Container]:
        image = task.image or await self._built(task.path / "environment")
        name = f"agentevolver-{uuid.uuid4().hex[:16]}"
        try:
            # The container shares the host's network, because the gateway listens on loopback.
            start = ["run", "-d", "--rm", "--network", "host", "--stop-timeout", "0", "--name", name]
            await self.call(*start, "--entrypoint", "sleep", image, str(int(seconds)))
            folder = (await self.call("inspect", "--format", "{{.Config.WorkingDir}}", name)).strip()
            # An image may bring a reward or tests of its own.
            fresh = "rm -rf /tests /logs/verifier && mkdir -p /logs/verifier"
            await self.call("exec", "-u", "0", name, "sh", "-c", fresh)
            yield _Container(self, name, "/app" if folder in ("", "/") else posixpath.normpath(folder))
        finally:
            with contextlib.suppress(GradingError):
                await asyncio.shield(self.call("rm", "-f", name))

    # Not `run_program`, which ends all descendants of a command: podman's containers are its descendants.
    async def call(self, *words: str, seconds: float = 120.0) -> str:
        """Run a command of the engine and return its output. Raises GradingError if it fails."""
        command, said = [self.program, *words], asyncio.subprocess.PIPE
        called = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            async with asyncio.timeout(seconds):
                printed, complaint = await called.communicate()
        except TimeoutError as error:
            raise GradingError(f"{self.program} {words[0]} did not end within {seconds:g} s") from error
        finally:
            if called.returncode is None:
                called.kill()
        if called.returncode != 0:
            why = complaint[-TAIL_BYTES:].decode("utf-8", "replace").strip() or "nothing said"
            raise GradingError(f"{self.program} {words[0]} ended with code {called.returncode}: {why}")
        return printed.decode("utf-8", "replace")

    async def _built(self, folder: Path) -> str:
        if not (folder / "Dockerfile").is_file():
            raise GradingError(f"{folder}: no Dockerfile, and task.toml names no docker_image")
        tag = f"agentevolver-task:{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"
        async with self._building.setdefault(tag, asyncio.Lock()):
            await self.call("build", "-q", "-t", tag, str(folder), seconds=_BUILD_S)
        return tag


@dataclass(slots=True)
class _Container:
    engine: CommandEngine
    name: str
    folder: str

    async def run(self, words: Sequence[str], environ: Mapping[str, str]) -> Ran:
        # The engine's client takes values from its environment: every user can read a command line.
        told = [item for name in environ for item in ("-e", name)]
        command = [self.engine.program, "exec", *told, self.name, *words]
        return await run_program(command, {**os.environ, **environ}, Path("/"))

    async def put(self, source: Path, target: str) -> None:
        await self.engine.call("cp", str(source), f"{self.name}:{target}")

    def take_work(self, file: Path) -> None:
        with self._copy(f"{self.name}:{self.folder}", "-") as stream, file.open("wb") as target:
            keep_work(stream, target, self.folder)

    def give_work(self, file: Path) -> None:
        with file.open("rb") as work:
            command = [self.engine.program, "cp", "-a", "-", f"{self.name}:{posixpath.dirname(self.folder)}"]
            done = subprocess.run(command, stdin=work, capture_output=True, timeout=_COPY_S)
        if done.returncode != 0:
            raise OSError(done.stderr.decode("utf-8", "replace").strip())

    def read(self, path: str) -> str | None:
        """Return a file's text; None if it is not a regular file of at most 1 KiB."""
        with (
            contextlib.suppress(tarfile.TarError, OSError),
            self._copy(f"{self.name}:{path}", "-") as stream,
            tarfile.open(fileobj=stream, mode="r|") as read,
        ):
            member = read.next()
            if member is not None and member.isreg() and member.size <= _REWARD_BYTES:
                file = read.extractfile(member)
                return None if file is None else file.read().decode("utf-8", "replace")
        return None

    @contextmanager
    def _copy(self, *words: str) -> Iterator[IO[bytes]]:
        # Not `exec cat`: a program of the container would answer, and a fifo would never.
        command = [self.engine.program, "cp", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as copy:
            ending = threading.Timer(_COPY_S, copy.kill)
            ending.start()
            try:
                assert copy.stdout is not None
                yield copy.stdout
            finally:
                ending.cancel()
                copy.kill()


def engine_of(name: str) -> ProcessEngine | CommandEngine:
    """Return an engine by name; `auto` is docker, else podman. Raises ValueError if the program is missing."""
    if name == "process":
        return ProcessEngine()
    programs = ("docker", "podman") if name == "auto" else (name,)
    found = next((program for program in programs if shutil.which(program)), None)
    if found is None:
        raise ValueError(f"no {' or '.join(programs)} in PATH")
    return CommandEngine(found)

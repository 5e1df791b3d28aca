"""The user's agent in its task's container (harbor's layout): the agent works there, then the task's tests grade it
there.

A task folder holds `instruction.md`, `environment/` (Dockerfile), `tests/test.sh`, which writes a number to
`/logs/verifier/reward.txt`, and `task.toml` (`[verifier] timeout_sec`, `[environment] docker_image`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
import tomllib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentevolver.rollout.agent import AgentFailed, Result
from agentevolver.rollout.command import Ran, filled, inherited, run_program, task_file, variables
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


@dataclass(slots=True)
class ContainerAgent:
    """An agent that works in its task's container; placeholders such as `{query}` are filled into `words`."""

    words: Sequence[str]
    engine: ProcessEngine | CommandEngine
    timeout_s: float

    async def play(self, task: Task, endpoint: GatewayEndpoint, world: LiveWorld | None) -> Result:
        """Run the agent, then the task's tests.

        Raises AgentFailed, with the tests' result, if the agent failed; GradingError if the tests give no grade.
        """
        folder = TaskFolder.read(Path(str(task.metadata.get("info", {}).get("folder", ""))))
        with tempfile.TemporaryDirectory(prefix="task-") as place:
            told = Path(place) / "task.json"
            told.write_bytes(task_file(task, world))
            async with self.engine.box(folder, self.timeout_s + _SPARE_S) as box:
                await box.put(told, TASK_FILE)
                words = filled(self.words, task, endpoint, world, TASK_FILE)
                ran = await box.run(words, variables(endpoint, world, TASK_FILE))
                await box.put(folder.path / "tests", "/tests")
                result = await _graded(box, folder)
        try:
            ran.check(endpoint)
        except AgentFailed as error:
            raise AgentFailed(str(error), result) from error
        return result


async def _graded(box: _Folder | _Container, folder: TaskFolder) -> Result:
    try:
        async with asyncio.timeout(folder.tests_s):
            ran = await box.run(["bash", "/tests/test.sh"], {})
    except TimeoutError as error:
        raise GradingError(f"{folder.path}: tests/test.sh did not end within {folder.tests_s:g} s") from error
    text = await box.read(REWARD)
    try:
        score = float((text or "").strip())
        if not 0.0 <= score <= 1.0:
            raise ValueError("not in 0..1")
    except ValueError as error:
        raise GradingError(
            f"{folder.path}: tests/test.sh ended with code {ran.code} and wrote {text!r} to {REWARD}, expected a "
            f"number in 0..1; it printed at last: {ran.tail or 'nothing'}"
        ) from error
    return Result(score, f"tests/test.sh ended with code {ran.code}")


# ---- a process in a container's place ----


# For tasks that need nothing of their image, and trusted agents. The paths `/app`, `/tests` and `/logs` become paths
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

    async def read(self, path: str) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        return None

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
            start = ["run", "-d", "--rm", "--network", "host", "--name", name, "--entrypoint", "sleep", image]
            await self.call(*start, str(int(seconds)))
            box = _Container(self, name)
            await self.call("exec", "-u", "0", name, "mkdir", "-p", "/logs/verifier")
            yield box
        finally:
            with contextlib.suppress(GradingError):
                await asyncio.shield(self.call("rm", "-f", name))

    async def call(self, *words: str, seconds: float = 120.0) -> str:
        """Run a command of the engine and return its output. Raises GradingError if it fails."""
        ran = await self.ran(*words, seconds=seconds)
        if ran.code != 0:
            raise GradingError(f"{self.program} {words[0]} ended with code {ran.code}: {ran.tail or 'nothing said'}")
        return ran.printed.decode("utf-8", "replace")

    async def ran(self, *words: str, seconds: float | None = None) -> Ran:
        try:
            async with asyncio.timeout(seconds):
                return await run_program([self.program, *words], os.environ, Path("/"))
        except TimeoutError as error:
            raise GradingError(f"{self.program} {words[0]} did not end within {seconds:g} s") from error

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

    async def run(self, words: Sequence[str], environ: Mapping[str, str]) -> Ran:
        # The client takes values from its environment: every user can read a command line.
        told = [item for name in environ for item in ("-e", name)]
        command = [self.engine.program, "exec", *told, self.name, *words]
        return await run_program(command, {**os.environ, **environ}, Path("/"))

    async def put(self, source: Path, target: str) -> None:
        await self.engine.call("cp", str(source), f"{self.name}:{target}")

    async def read(self, path: str) -> str | None:
        ran = await self.engine.ran("exec", self.name, "cat", path, seconds=60.0)
        return ran.printed.decode("utf-8", "replace") if ran.code == 0 else None


def engine_of(name: str) -> ProcessEngine | CommandEngine:
    """Return an engine by name; `auto` is docker, else podman. Raises ValueError if the program is missing."""
    if name == "process":
        return ProcessEngine()
    programs = ("docker", "podman") if name == "auto" else (name,)
    found = next((program for program in programs if shutil.which(program)), None)
    if found is None:
        raise ValueError(f"no {' or '.join(programs)} in PATH")
    return CommandEngine(found)

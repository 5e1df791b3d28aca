"""The fork server: `python -m agentevolver.trainer.preload SOCKET` imports everything, then forks on request.

The reply to a request (`client.py`) is a line with the process id, and later a line with the status.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import setproctitle

from agentevolver.trainer.preload import SOCKET, executable_of
from agentevolver.trainer.preload.client import RAY_WORKER
from agentevolver.utils.heap import freeze_heap
from agentevolver.utils.processes import die_with_parent, reseed

# Nine tenths of the import time of a run's processes. Ray must not be among them: it reads the job's id and the
# raylet's process id when it is imported.
FOREIGN = (
    "torch._inductor.lowering", "torch.distributed.fsdp", "tensordict", "transformers.models.auto.auto_factory",
    "transformers.image_processing_utils", "transformers.models.qwen2.modeling_qwen2", "transformers.trainer_pt_utils",
    "openai", "fastapi", "uvicorn", "scipy.signal", "datasets", "hydra", "aiohttp", "jsonschema", "requests", "peft",
    "tensorboard",
    "vllm.entrypoints.openai.api_server", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen2",
)  # fmt: skip
# Further imports for workers of a Ray job. Not verl_plugin.engine: importing it joins the workers' process group.
OF_A_JOB = (
    "agentevolver.trainer.run", "agentevolver.trainer.trainer", "agentevolver.trainer.verl_plugin.agent_loop",
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.vllm_async_server", "verl.workers.rollout.vllm_rollout.vllm_rollout",
)  # fmt: skip
MAX_FILES = 250
# As in verl's runtime environment; libraries read them on import.
VARIABLES = {"TOKENIZERS_PARALLELISM": "true", "VLLM_LOGGING_LEVEL": "WARN"}


@dataclass(frozen=True)
class ForkRequest:
    """A process to fork; `files` maps descriptor numbers in the client to the descriptors received here."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    nice: int
    files: dict[int, int]


def read_request(connection: socket.socket) -> ForkRequest | None:
    """Read a request with its files, or return None if the client has gone."""
    length, files, _, _ = socket.recv_fds(connection, 8, MAX_FILES)
    text = _read(connection, int.from_bytes(length, "big"))
    if len(length) < 8 or text is None:
        close_all(files)
        return None
    wanted = json.loads(text)
    numbers = dict(zip(wanted["files"], files, strict=True))
    return ForkRequest(wanted["argv"], wanted["env"], wanted["cwd"], wanted["nice"], numbers)


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


class PreloadServer:
    """Forks a process for each request on a listening socket.

    A Ray job's workers are forked by a fork server of that job. `path` is the prefix of the jobs' socket paths, or None
    in such a server.
    """

    def __init__(self, listening: socket.socket, path: Path | None) -> None:
        self._listening = listening
        self._path = path
        self._jobs: dict[str, str] = {}
        self._children: dict[int, socket.socket | None] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)

    def serve(self) -> tuple[ForkRequest, socket.socket | None]:
        """Serve forever. Return only in a forked process: its request, and a socket if it is a job's fork server."""
        signal.set_wakeup_fd(self._woken)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listening:
                    connection, _ = self._listening.accept()
                    request = read_request(connection)
                    if request is None:
                        connection.close()
                    elif (
                        self._path is not None
                        and (job := request.env.get("RAY_JOB_ID"))
                        and request.argv[0].endswith(RAY_WORKER)
                    ):
                        if (made := self._send_on(connection, request, job, self._path)) is not None:
                            return request, made
                    elif self._fork(connection, request):
                        return request, None
                elif key.fileobj == self._wake:
                    self._bury()
                else:
                    self._let_go(key.fileobj)

    def _send_on(self, connection: socket.socket, request: ForkRequest, job: str, path: Path) -> socket.socket | None:
        close_all(request.files.values())
        # Returns the listening socket in the new process, and None in this one.
        if job not in self._jobs:
            self._jobs[job] = f"{path}.{job}"
            Path(self._jobs[job]).unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(self._jobs[job])
            listening.listen(64)
            parent = os.getpid()
            if not (pid := os.fork()):
                self._leave(parent)
                connection.close()
                return listening
            listening.close()
            self._children[pid] = None
        with connection:
            connection.sendall(f"{self._jobs[job]}\n".encode())
        return None

    def _fork(self, connection: socket.socket, request: ForkRequest) -> bool:
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._leave(parent)
            connection.close()
            return True
        close_all(request.files.values())
        self._children[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ)
        _tell(connection, pid)
        return False

    def _leave(self, parent: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with_parent(parent)
        self._selector.close()
        for own in (self._listening, *self._children.values()):
            if own is not None:
                own.close()
        os.close(self._wake)
        os.close(self._woken)

    def _bury(self) -> None:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = self._children.pop(pid)
            if connection is None:
                continue
            if connection in self._selector.get_map():
                self._selector.unregister(connection)
            _tell(connection, status)
            connection.close()

    def _let_go(self, connection: Any) -> None:
        self._selector.unregister(connection)
        for pid, own in self._children.items():
            if own is connection:
                # The fork called setsid, so its own subprocesses end with it.
                os.killpg(pid, signal.SIGKILL)


def close_all(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _tell(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(f"{number}\n".encode())
    except OSError:  # the client has gone
        return


def become(request: ForkRequest) -> Callable[[], Any]:
    """Take on a request's files, environment, folder and niceness; return its program as a function to call once."""
    # First move the descriptors above all target numbers: a target may be in use by another received file.
    above = max(request.files, default=2) + 1
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for number, file in request.files.items()}
    close_all(request.files.values())
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)
    os.chdir(request.cwd)
    os.nice(max(0, request.nice - os.nice(0)))
    os.environ.clear()
    os.environ.update(request.env)
    reseed()
    if path := request.env.get(SOCKET):
        multiprocessing.set_executable(str(executable_of(path)))
    what, *rest = request.argv
    if what == "-m":
        sys.argv = [rest[0], *rest[1:]]
        return lambda: runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    if what == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        return lambda: exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    sys.argv = [what, *rest]
    sys.path[0] = str(Path(what).parent)
    return lambda: runpy.run_path(what, run_name="__main__")


def import_all(names: Iterable[str]) -> None:
    # freeze_heap keeps the imported objects out of garbage collection, whose writes would copy shared pages after a
    # fork.
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:  # the process that needs the module reports it
            print(f"not preloaded: {name}: {error}", flush=True)
    print(f"{len(sys.modules)} modules, {len(os.listdir('/proc/self/task'))} threads", flush=True)
    freeze_heap()


def serve(listening: socket.socket, path: Path) -> ForkRequest:
    """Run the fork server, or a job's fork server in a forked process. Return only in requested processes."""
    import_all(FOREIGN)
    if "ray" in sys.modules:
        raise ImportError("one of FOREIGN imports ray, which must not be loaded before its job is known")
    request, listening_for_job = PreloadServer(listening, path).serve()
    if listening_for_job is None:
        return request
    os.environ.update({name: value for name, value in request.env.items() if name.startswith("RAY_")})
    import_all(OF_A_JOB)
    return PreloadServer(listening_for_job, None).serve()[0]


def run(request: ForkRequest) -> int:
    if request.argv[0] in (
        "-m",
        "-c",
    ):  # Ray sets its workers' titles itself, and fails after this
        setproctitle.setproctitle(" ".join((sys.executable, *request.argv)))
    try:
        become(request)()
        return 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def main() -> None:
    path = Path(sys.argv[1])
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(64)
    os.environ.update({name: os.environ.get(name, value) for name, value in VARIABLES.items()})
    code = run(serve(listening, path))
    # Skip the interpreter's own shutdown, which would tear down the fork server's imports with warnings.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

"""Worker process: answers the service's frames by calling the environments of its instances.

Every call gets exactly one reply: OK with JSON, BAD_REQUEST for a `ValueError` of the environment, FAILED for anything
else. When the service closes the connection, the process ends at once with its whole process group, even if the
environment hangs.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from env_service.base import BaseEnv
from env_service.contract import (
    ContractError,
    checked_init_state,
    checked_score,
    checked_state,
    checked_step,
    checked_tasks,
    checked_tools,
    created_with,
    has_native_tools,
    list_tasks,
    shorten,
    with_tools,
)
from env_service.hosting.wire import Frame, FrameKind, WireDecoder, WireError, encode, pack, unpack

logger = logging.getLogger(__name__)

MAX_TRACEBACK_CHARS = 16_000
RECV_BYTES = 256 * 1024
# If steps are shorter than QUICK_S on average (moving, each new one counts a tenth), the reading thread runs them.
QUICK_S = 0.001
TYPICAL_SHARE = 0.1
PATIENCE_S = 0.05


class CallAbandoned(BaseException):
    """Raised inside a thread whose call took too long; it ends a loop in Python code."""


class InstanceHost:
    """The instances of one environment class. One instance is used by one thread at a time."""

    def __init__(self, env_class: type[BaseEnv], max_reply_bytes: int) -> None:
        self.env_class = env_class
        self.max_reply_bytes = max_reply_bytes
        # By slot, which the service never uses twice; callers may reuse instance ids.
        self._instances: dict[str, BaseEnv] = {}
        self._cold: BaseException | None = None
        self._handlers: dict[FrameKind, Callable[[dict[str, Any]], Any]] = {
            FrameKind.CREATE: self._create,
            FrameKind.STEP: self._step,
            FrameKind.EVALUATE: self._evaluate,
            FrameKind.INFO: self._info,
            FrameKind.CLOSE: self._close,
            FrameKind.PROFILE: self._profile,
        }

    def warm_up(self) -> None:
        """Let the class prepare this process; a failure is reported by the next create."""
        try:
            self.env_class.warm_up()
        except BaseException as error:  # foreign code, as in `answer`; the next create reports it
            self._cold = error

    def answer(self, frame: Frame) -> bytes:
        """Return the encoded reply to one request; only `CallAbandoned` escapes."""
        try:
            handler = self._handlers.get(frame.kind)
            if handler is None:
                raise WireError(f"a worker cannot answer {frame.kind.name}")
            return encode(frame.call, FrameKind.OK, self._serialised(frame.kind, handler(unpack(frame.payload))))
        except CallAbandoned:
            raise
        except ValueError as error:
            return encode(frame.call, FrameKind.BAD_REQUEST, pack({"message": _printable(error)}))
        except BaseException as error:  # foreign code: its SystemExit or KeyboardInterrupt must not end the host
            return encode(frame.call, FrameKind.FAILED, pack(_described(error)))

    def abandon(self, frame: Frame) -> bytes:
        """Drop the instance of a given-up call, in the thread that ran the call, and return the late reply."""
        env = self._instances.pop(unpack(frame.payload).get("slot"), None)
        if env is not None:
            self._close_quietly(env)
        return encode(
            frame.call, FrameKind.FAILED, pack({"type": "CallAbandoned", "message": "given up", "traceback": ""})
        )

    def _serialised(self, kind: FrameKind, value: Any) -> bytes:
        try:
            payload = pack(value)
        except TypeError as error:
            raise ContractError(f"the environment's reply to {kind.name} is not JSON: {error}") from error
        if len(payload) > self.max_reply_bytes:
            raise ContractError(
                f"the environment's reply to {kind.name} has {len(payload)} bytes; the limit is {self.max_reply_bytes}"
            )
        return payload

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._cold is not None:
            raise ContractError(f"`{self.env_class.__name__}.warm_up` failed: {shorten(self._cold)}") from self._cold
        instance_id, params = request["instance_id"], created_with(self.env_class, request["params"])
        env = self.env_class(request["task_id"], instance_id, params)
        try:
            state = with_tools(env, checked_init_state(env.get_init_state(params)))
            state["info"] = {**state["info"], "instance_id": instance_id, "task_id": request["task_id"]}
            self._serialised(FrameKind.CREATE, state)
        except BaseException:
            self._close_quietly(env)
            raise
        self._instances[request["slot"]] = env
        return state

    def _step(self, request: dict[str, Any]) -> dict[str, Any]:
        env = self._instances[request["slot"]]
        result = checked_step(env.step(request["action"], request["params"]))
        if has_native_tools(env) and "tools" in result["info"]:
            checked_tools(result["info"]["tools"])
        return result

    def _evaluate(self, request: dict[str, Any]) -> float:
        return checked_score(self._instances[request["slot"]].evaluate(request["messages"], request["params"]))

    def _info(self, request: dict[str, Any]) -> Any:
        told = self._instances[request["slot"]].get_info(request["messages"], request["params"])
        return told if (request["params"] or {}).get("what") != "state" else checked_state(told) or told

    def _close(self, request: dict[str, Any]) -> None:
        env = self._instances.pop(request["slot"], None)
        if env is not None:
            env.close()

    def _profile(self, request: dict[str, Any]) -> list[str]:
        return checked_tasks(list_tasks(self.env_class, request["split"], request["params"]))

    def _close_quietly(self, env: BaseEnv) -> None:
        try:
            env.close()
        except BaseException as error:  # only logged: the earlier failure is reported
            logger.warning("close() of %s failed after an earlier failure: %s", self.env_class.__name__, shorten(error))


def _printable(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a foreign __str__ may raise anything; the caller still gets the type
        text = type(error).__name__
    return text[:2000].encode("utf-8", "replace").decode("utf-8")


def _described(error: BaseException) -> dict[str, str]:
    try:
        trace = "".join(traceback.format_exception(error, limit=60))
    except Exception:  # formatting calls the foreign __str__, too
        trace = "(the traceback could not be formatted)"
    trace = trace[-MAX_TRACEBACK_CHARS:].encode("utf-8", "replace").decode("utf-8")
    return {"type": type(error).__name__, "message": _printable(error), "traceback": trace}


class FrameThreads:
    """Threads that answer frames, started on demand up to `size`. A hung call costs only its thread."""

    def __init__(self, instance_host: InstanceHost, send: Callable[[bytes], None], size: int) -> None:
        self._instance_host = instance_host
        self._send = send
        self._size = size
        self._threads = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._running: dict[int, int] = {}
        self._abandoned: set[int] = set()
        self._typical_s = 0.0

    @property
    def quick(self) -> bool:
        """Whether calls are so short that handing one to another thread would cost more."""
        return self._typical_s < QUICK_S

    def submit(self, frame: Frame) -> None:
        self._frames.put(frame)
        with self._lock:
            # A new thread only if the idle ones cannot take all waiting frames.
            grow = self._idle < self._frames.qsize() and self._threads < self._size
            self._threads += grow
        if grow:
            threading.Thread(target=self._work, name="environment", daemon=True).start()

    def cancel(self, call: int) -> None:
        """Raise `CallAbandoned` in the thread that runs `call`, unless the call has ended."""
        with self._lock:
            thread = self._running.get(call)
            if thread is not None:
                self._abandoned.add(call)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(CallAbandoned))

    def dismiss(self) -> None:
        # Each thread ends at the first None that it takes, after its current call.
        for _ in range(self._size):
            self._frames.put(None)

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    self._idle += 1
                frame = self._frames.get()
                with self._lock:
                    self._idle -= 1
                if frame is None or not self.run(frame):
                    return
        except CallAbandoned:  # the exception arrived after the abandoned call had ended
            return
        finally:
            with self._lock:
                self._threads -= 1

    def run(self, frame: Frame) -> bool:
        """Answer one frame; False if the call was abandoned: the thread may get the exception at any later moment."""
        began = time.monotonic()
        try:
            with self._lock:
                self._running[frame.call] = threading.get_ident()
            reply = self._instance_host.answer(frame)
        except CallAbandoned:
            reply = self._instance_host.abandon(frame)
        with self._lock:
            self._running.pop(frame.call, None)
            abandoned = frame.call in self._abandoned
            self._abandoned.discard(frame.call)
            self._typical_s += TYPICAL_SHARE * (time.monotonic() - began - self._typical_s)
        self._send(reply)
        return not abandoned


class Reader:
    """Reads requests from the service's connection, and answers a lone quick step in the reading thread."""

    def __init__(self, sock: socket.socket, threads: FrameThreads, on_end: Callable[[], None]) -> None:
        self._sock = sock
        self._threads = threads
        self._on_end = on_end
        self._decoder = WireDecoder()
        self._lock = threading.Lock()
        self._busy: tuple[int, float] | None = None
        self._calls = 0
        self._over = threading.Event()

    def read(self) -> None:
        """Read until the connection closes, then call `on_end`; returns early if another thread took over."""
        taken_over = False
        try:
            threading.Thread(target=self._stand_sentry, name="sentry", daemon=True).start()
            while data := self._sock.recv(RECV_BYTES):
                frames = list(self._decoder.feed(data))
                # Handing a call to another thread costs several thread switches, more than most steps of a pure Python
                # environment. If this call lasts longer than `PATIENCE_S`, the sentry takes over the reading.
                if len(frames) == 1 and frames[0].kind is FrameKind.STEP and self._threads.quick:
                    taken_over = not self._answer(frames[0])
                    if taken_over:
                        return
                    continue
                for frame in frames:
                    if frame.kind is FrameKind.CANCEL:
                        self._threads.cancel(frame.call)
                    else:
                        self._threads.submit(frame)
        except (OSError, WireError) as error:
            logger.warning("the connection to the service broke: %s", error)
        finally:
            if not taken_over:
                self._over.set()
                self._threads.dismiss()
                self._sock.close()
                self._on_end()

    def _answer(self, frame: Frame) -> bool:
        """Answer a frame in this thread. False if another thread has taken over reading."""
        with self._lock:
            self._calls += 1
            mine = self._calls
            self._busy = (mine, time.monotonic())
        try:
            self._threads.run(frame)
            with self._lock:
                still_mine = self._busy is not None and self._busy[0] == mine
                if still_mine:
                    self._busy = None
        except CallAbandoned:  # arrived after the end of the call, which the new reading thread cancelled
            return False
        return still_mine

    def _stand_sentry(self) -> None:
        while not self._over.wait(PATIENCE_S):
            with self._lock:
                # A call holds up the reading: read in its place.
                late = self._busy is not None and time.monotonic() - self._busy[1] > PATIENCE_S
                if late:
                    self._busy = None
            if late:
                self.read()
                return


def serve_shared(sock: socket.socket, instance_host: InstanceHost, threads: int, on_end: Callable[[], None]) -> None:
    """Answer for many instances until the service closes the connection, then call `on_end`; blocks."""
    sending = threading.Lock()

    def send(data: bytes) -> None:
        try:
            with sending:
                sock.sendall(data)
        except OSError:  # the service is gone; the reader notices and ends the process
            logger.info("the connection was closed before a reply could be sent")

    Reader(sock, FrameThreads(instance_host, send, threads), on_end).read()


def serve_isolated(sock: socket.socket, instance_host: InstanceHost) -> None:
    """Warm up, then answer for one instance in this thread. Never returns: the process group ends with the
    connection."""
    threading.Thread(target=_end_with_connection, args=(sock,), name="lifeline", daemon=True).start()
    instance_host.warm_up()
    decoder = WireDecoder()
    try:
        while data := sock.recv(RECV_BYTES):
            for frame in decoder.feed(data):
                sock.sendall(instance_host.answer(frame))
    except (OSError, WireError) as error:
        logger.warning("the connection to the service broke: %s", error)
    finally:
        end_group()


def _end_with_connection(sock: socket.socket) -> None:
    # The main thread may hang in the environment: watch the connection here, without reading from it.
    watcher = select.poll()
    watcher.register(sock.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    watcher.poll()
    end_group()


def end_group() -> None:
    # Environments may have started processes.
    os.killpg(os.getpgrp(), signal.SIGKILL)

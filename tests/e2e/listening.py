"""Where a run listens, what is spoken there, and what a peer without a credential is told."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import httpx
import psutil
import zmq
from zmq.utils.monitor import parse_monitor_message

from agentevolver.utils.processes import ProcessId
from tests.e2e.runs import Launched, command_of

T = TypeVar("T")

# A method of each gRPC service of Ray's; a server without the method says UNIMPLEMENTED.
GRPC_METHODS = (
    "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "ray.rpc.NodeManagerService/GetSystemConfig",
    "ray.rpc.ObjectManagerService/Pull",
    "ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "ray.rpc.ReporterService/GetTraceback",
    "ray.rpc.RayletDataStreamer/Datapath",
)


@dataclass(frozen=True, order=True)
class Listener:
    """A socket that takes connections: whose it is, where, and the protocol that is spoken (grpc, http, zmtp, or
    other)."""

    process: str
    protocol: str
    ip: str
    port: int


def name_of(process: ProcessId) -> str:
    """What a process is, by its command line."""
    command = command_of(process)
    for known in (
        "gcs_server",
        "raylet",
        "ray.util.client.server",
        "dashboard.py",
        "env_service",
        "agentevolver.trainer.job.main",
    ):
        if re.search(rf"(/|-m ){re.escape(known)}( |$)", command):
            return known
    return re.split(r"[ .]", command.strip())[0]


def protocol_of(ip: str, port: int) -> str:
    """The protocol that is spoken at an address."""
    said = b""
    with socket.create_connection((ip, port), timeout=2) as peer:
        peer.settimeout(0.5)
        with suppress(OSError):
            said = peer.recv(64)  # ZeroMQ and gRPC greet first
        if not said:
            with suppress(OSError):
                peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                said = peer.recv(64)
    if said.startswith(b"HTTP/1"):
        return "http"
    if said[:1] == b"\xff":
        return "zmtp"
    return "grpc" if len(said) > 3 and said[3] == 4 else "other"  # the type of HTTP/2's SETTINGS


def listeners(run: Launched) -> list[Listener]:
    """Where a run's processes listen now; sockets for datagrams are among it, with the protocol "udp"."""
    processes = {process.pid: process for process in run.processes()}
    wanted = [
        (
            name_of(processes[one.pid]),
            one.laddr.ip.removeprefix("::ffff:"),
            one.laddr.port,
            one.type == socket.SOCK_STREAM,
        )
        for one in psutil.net_connections("inet")
        if one.pid in processes and (one.type != socket.SOCK_STREAM or one.status == psutil.CONN_LISTEN)
    ]

    def look(name: str, ip: str, port: int, takes_connections: bool) -> Listener | None:
        reached = "127.0.0.1" if ip in ("::", "0.0.0.0") else ip
        try:
            return Listener(name, protocol_of(reached, port) if takes_connections else "udp", ip, port)
        except ConnectionRefusedError:  # ended meanwhile, as idle workers do
            return None

    return sorted(one for one in in_parallel(look, wanted) if one is not None)


def in_parallel(work: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> list[T]:
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(lambda arguments: work(*arguments), calls))


def grpc_answer(listener: Listener) -> str:
    """How a gRPC server answers somebody without a token: the status of the one of `GRPC_METHODS` that it has."""
    with grpc.insecure_channel(f"{listener.ip}:{listener.port}") as channel:
        statuses = set()
        for method in GRPC_METHODS:
            call = channel.unary_unary(f"/{method}", request_serializer=bytes, response_deserializer=bytes)
            try:
                call(b"", timeout=5)
                statuses.add("OK")
            except grpc.RpcError as error:
                statuses.add(error.code().name)  # type: ignore[attr-defined]
    return ",".join(sorted(statuses - {"UNIMPLEMENTED"}))


def zmtp_answer(listener: Listener) -> str:
    """How a ZeroMQ socket answers a peer without a key: `open` when the handshake succeeds, else `closed`."""
    context: zmq.Context[Any] = zmq.Context()
    context.linger = 0
    try:
        with context.socket(zmq.DEALER) as peer:
            events = peer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            peer.connect(f"tcp://{listener.ip}:{listener.port}")
            peer.send(b"anything")
            answered = (
                events.poll(700)
                and parse_monitor_message(events.recv_multipart())["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            )
            peer.disable_monitor()
        return "open" if answered else "closed"
    finally:
        context.destroy(linger=0)


def http_answers(listener: Listener, *paths: str) -> dict[str, set[int]]:
    """What each path answers to GET and to POST without a token."""
    url = f"http://{listener.ip}:{listener.port}"
    with httpx.Client(trust_env=False, timeout=10) as client:
        return {
            path: {client.request(method, f"{url}{path}").status_code for method in ("GET", "POST")} for path in paths
        }


def http_answer(listener: Listener) -> str:
    """How a web server answers somebody without a token: the status, or `counters` where it shows Prometheus' on every
    path."""
    reply = httpx.get(f"http://{listener.ip}:{listener.port}/v1/models", trust_env=False, timeout=10)
    return "counters" if reply.is_success and reply.text.startswith("# HELP") else str(reply.status_code)


def answer(one: Listener) -> str:
    """What a listener tells a peer without a credential."""
    if one.protocol == "grpc":
        return grpc_answer(one)
    if one.protocol == "zmtp":
        return zmtp_answer(one)
    if one.protocol == "http":
        return http_answer(one)
    return ""


def answers(found: list[Listener]) -> dict[Listener, str]:
    """What each of them tells a peer without a credential."""
    return dict(zip(found, in_parallel(answer, [(one,) for one in found]), strict=True))

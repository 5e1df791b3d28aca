"""The run's key: 32 random bytes that the Ray workers of a job share, in Ray's key-value store and in no file,
environment or log. It protects TransferQueue's sockets and vLLM's server."""

from __future__ import annotations

import functools
import hmac
import secrets
import sys
from functools import cache
from types import ModuleType
from typing import Any

import zmq
from zmq.utils import z85

_NAMESPACE = b"agentevolver"
TRANSFER_QUEUE, SERVER = "TransferQueue", "vLLM's server"
# Routes of vLLM's server for monitoring: liveness, and counters without text.
OPEN = ("/health", "/metrics")


def create() -> None:
    """Create this Ray job's key; call it before anything needs the key."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(_name(), secrets.token_bytes(32), overwrite=False, namespace=_NAMESPACE)


@cache
def key() -> bytes:
    """Return the run's key; raises RuntimeError outside a Ray job that has one."""
    import ray
    from ray.experimental import internal_kv

    found = internal_kv._internal_kv_get(_name(), namespace=_NAMESPACE) if ray.is_initialized() else None
    if found is None:
        raise RuntimeError(
            "this Ray job has no run key: call agentevolver.utils.run_key.create() before TransferQueue and vLLM start"
        )
    return bytes(found)


def derived(use: str) -> bytes:
    # HMAC-SHA-256 as a key derivation: no use can recover the run's key.
    return hmac.digest(key(), use.encode(), "sha256")


def _name() -> bytes:
    import ray

    return f"run-key-{ray.get_runtime_context().get_job_id()}".encode()


def secure(socket: zmq.Socket[Any], kind: int, secret: bytes) -> None:
    """Put CURVE on an unbound socket: a ROUTER serves, a DEALER connects.

    `secret`: 32 bytes, the secret key of the run's only key pair. Raises ValueError for another kind of socket.
    """
    if kind not in (zmq.ROUTER, zmq.DEALER):
        raise ValueError(
            f"TransferQueue made a socket of the kind {zmq.SocketType(kind).name}: only ROUTER and DEALER are known "
            "here"
        )
    # A CURVE client needs the server's public key to send anything (HELLO in https://rfc.zeromq.org/spec/26), and the
    # key never crosses the wire. It is derived from the run's key, so no list of admitted clients (ZAP) is needed.
    own = z85.encode(secret)
    socket.curve_secretkey = own
    socket.curve_publickey = zmq.curve_public(own)
    if kind == zmq.ROUTER:
        socket.curve_server = True
    else:
        socket.curve_serverkey = zmq.curve_public(own)


def install_curve(utils: ModuleType) -> None:
    # TransferQueue unpickles every frame that arrives: its sockets must be closed to peers without the key.
    original = utils.create_zmq_socket

    @functools.wraps(original)
    def create_zmq_socket(ctx: Any, socket_type: int, *args: Any, **kwargs: Any) -> Any:
        socket = original(ctx, socket_type, *args, **kwargs)
        try:
            secure(socket, socket_type, derived(TRANSFER_QUEUE))
        except BaseException:
            socket.close(linger=0)
            raise
        return socket

    for name, module in list(sys.modules.items()):
        # These modules imported the function by name.
        if name.startswith("transfer_queue.") and getattr(module, "create_zmq_socket", None) is original:
            module.create_zmq_socket = create_zmq_socket  # type: ignore[attr-defined]


def server_key() -> str:
    return derived(SERVER).hex()


class RequireKey:
    """ASGI middleware that answers 401 to requests without the run's bearer token."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._wanted = f"Bearer {server_key()}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN or self._is_authorised(scope["headers"]):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "this server asks for the key of its run"}'})

    def _is_authorised(self, headers: Any) -> bool:
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)


def install_server_key(server: ModuleType) -> None:
    # vLLM's own `api_key` guards /v1, /v2, /inference and /cohere only; other routes generate too (/invocations),
    # tokenise, and scale the engine.
    original = server.build_app

    @functools.wraps(original)
    def build_app(args: Any, *rest: Any, **kwargs: Any) -> Any:
        args.middleware = [*args.middleware, f"{RequireKey.__module__}.{RequireKey.__name__}"]
        return original(args, *rest, **kwargs)

    server.build_app = build_app  # type: ignore[attr-defined]

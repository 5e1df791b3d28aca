"""TransferQueue's sockets, encrypted and closed to peers without the run's key (ZeroMQ's CURVE).

TransferQueue unpickles whatever frame arrives. With CURVE a peer must know the server's public key before it can send
one: the first message of the handshake is a box sealed to it (HELLO in https://rfc.zeromq.org/spec/26), and nothing on
    the wire tells it. Here that key is
derived from the run's and given to nobody else, so that no list of admitted clients (ZAP) is needed beside it: all ends
are the same peer.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import zmq
from zmq.utils import z85

from agentevolver.transport.run_key import derived

USE = "TransferQueue"


def secure(socket: zmq.Socket[Any], kind: int, secret: bytes) -> None:
    """Put CURVE on a socket that is not bound or connected yet: a ROUTER serves, a DEALER connects.

    Args:
        secret: the secret key of the run's one key pair, 32 bytes.

    Raises:
        ValueError: a socket of another kind, of which it is not known which end it is.
    """
    if kind not in (zmq.ROUTER, zmq.DEALER):
        raise ValueError(
            f"TransferQueue made a socket of the kind {zmq.SocketType(kind).name}: only ROUTER and DEALER are known "
            "here"
        )
    own = z85.encode(secret)
    socket.curve_secretkey = own
    socket.curve_publickey = zmq.curve_public(own)
    if kind == zmq.ROUTER:
        socket.curve_server = True
    else:
        socket.curve_serverkey = zmq.curve_public(own)


def install(utils: ModuleType) -> None:
    """Have `transfer_queue.utils.zmq_utils` make its sockets with CURVE, also for the modules that imported the
    function before."""
    original = utils.create_zmq_socket

    @functools.wraps(original)
    def create_zmq_socket(ctx: Any, socket_type: int, *args: Any, **kwargs: Any) -> Any:
        socket = original(ctx, socket_type, *args, **kwargs)
        try:
            secure(socket, socket_type, derived(USE))
        except BaseException:
            socket.close(linger=0)
            raise
        return socket

    for name, module in list(sys.modules.items()):
        if name.startswith("transfer_queue.") and getattr(module, "create_zmq_socket", None) is original:
            module.create_zmq_socket = create_zmq_socket  # type: ignore[attr-defined]

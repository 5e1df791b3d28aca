"""What CURVE costs TransferQueue: its sockets and messages between two processes, as they are and with a run's key.

    python benchmarks/transfer_queue.py [--kib 1 64 1024 16384] [--seconds 2] [--rounds 3]

A client puts a message with one tensor of the size given, and the server answers with a small one, as a storage unit
does; the next message goes out when the answer is there. Sockets are made by
`transfer_queue.utils.zmq_utils.create_zmq_socket`, messages are TransferQueue's own, both on loopback. The two ways
take turns, and the best round of each is shown: what else the machine does only takes away. The figures are of one
connection; each process has as many threads for its sockets as TransferQueue gives it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The folder of this file holds scripts that are named like packages.
ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

import torch  # noqa: E402
import zmq  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from transfer_queue.utils import zmq_utils  # noqa: E402

from agentevolver.transport.run_key import secure  # noqa: E402

SECRET = bytes(range(32))
HOST = "127.0.0.1"


def make(context: zmq.Context[Any], kind: int, closed: bool) -> Any:
    """Return a socket as TransferQueue makes it, with CURVE if it is to be closed to strangers."""
    made = zmq_utils.create_zmq_socket(context, kind, HOST)
    if closed:
        secure(made, kind, SECRET)
    return made


def message(**body: Any) -> list[Any]:
    """Return the frames of a message."""
    return list(zmq_utils.ZMQMessage.create(zmq_utils.ZMQRequestType.PUT_DATA, "benchmark", body).serialize())


def serve(pipe: Any) -> None:
    """Answer messages on two sockets until the parent ends."""
    context: zmq.Context[Any] = zmq.Context()
    made = [make(context, zmq.ROUTER, closed) for closed in (False, True)]
    pipe.send([one.bind_to_random_port(f"tcp://{HOST}") for one in made])
    poller = zmq.Poller()
    for one in made:
        poller.register(one, zmq.POLLIN)
    while True:
        for one, _ in poller.poll():
            identity, *frames = one.recv_multipart(copy=False)
            zmq_utils.ZMQMessage.deserialize(frames)
            one.send_multipart([identity, *message(done=True)])


def rate(peer: Any, tensor: torch.Tensor, seconds: float) -> float:
    """Return the messages a second that are put and answered."""
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        peer.send_multipart(message(field=tensor), copy=False)
        peer.recv_multipart()
        count += 1
    return count / spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kib", type=int, nargs="+", default=[1, 64, 1024, 16384])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pipe, other = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(other,), daemon=True)
    server.start()
    context: zmq.Context[Any] = zmq.Context()
    peers = []
    for closed, port in zip((False, True), pipe.recv(), strict=True):
        peers.append(make(context, zmq.DEALER, closed))
        peers[-1].connect(f"tcp://{HOST}:{port}")
    table = Table(
        "KiB a message",
        "plain, MB/s",
        "CURVE, MB/s",
        "plain / CURVE",
        "plain, ms",
        "CURVE, ms",
        title="TransferQueue's sockets",
    )
    for kib in options.kib:
        tensor = torch.zeros(kib * 256, dtype=torch.float32)
        best = [0.0, 0.0]
        for _ in range(options.rounds):
            best = [max(old, rate(peer, tensor, options.seconds)) for old, peer in zip(best, peers, strict=True)]
        plain, curve = best
        speed = kib * 1024 / 1e6
        table.add_row(
            str(kib),
            f"{plain * speed:.1f}",
            f"{curve * speed:.1f}",
            f"{plain / curve:.2f}",
            f"{1e3 / plain:.3f}",
            f"{1e3 / curve:.3f}",
        )
    Console().print(table)
    server.terminate()
    context.destroy(linger=0)


if __name__ == "__main__":
    main()

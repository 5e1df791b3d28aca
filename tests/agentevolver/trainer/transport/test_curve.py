from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import zmq

from agentevolver.utils import run_key

KEY = bytes(range(32))
WAIT_MS = 400


@pytest.fixture
def utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """transfer_queue's module, with the function that makes sockets as a run has it."""
    module = importlib.import_module("transfer_queue.utils.zmq_utils")
    users = [
        name
        for name, one in sys.modules.items()
        if name.startswith("transfer_queue.") and hasattr(one, "create_zmq_socket")
    ]
    for name in users:  # put back after the test
        monkeypatch.setattr(sys.modules[name], "create_zmq_socket", sys.modules[name].create_zmq_socket)  # type: ignore[attr-defined]
    monkeypatch.setattr(run_key, "key", lambda: KEY)
    run_key.install_curve(module)
    return module


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    one: zmq.Context[Any] = zmq.Context()
    one.linger = 0
    yield one
    one.destroy(linger=0)


class Boom:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def frame_of(one: Boom) -> list[bytes]:
    """A frame that is unpickled by whoever reads it."""
    serial = importlib.import_module("transfer_queue.utils.serial_utils")
    return [serial._PICKLE_FALLBACK_SENTINEL, pickle.dumps(one)]


def plain(peer: zmq.Socket[Any]) -> None:
    """A peer that knows nothing of CURVE."""


def of_another_run(peer: zmq.Socket[Any]) -> None:
    run_key.secure(peer, zmq.DEALER, bytes(32 * [7]))


def with_a_key_of_its_own(peer: zmq.Socket[Any]) -> None:
    public, peer.curve_secretkey = zmq.curve_keypair()
    peer.curve_publickey = peer.curve_serverkey = public


@pytest.mark.parametrize("prepare", [plain, of_another_run, with_a_key_of_its_own])
def test_a_strangers_frame_never_arrives_and_its_pickle_is_never_loaded(
    utils: ModuleType, context: zmq.Context[Any], tmp_path: Path, prepare: Callable[[zmq.Socket[Any]], None]
) -> None:
    with utils.create_zmq_socket(context, zmq.ROUTER, "127.0.0.1") as server, context.socket(zmq.DEALER) as stranger:
        prepare(stranger)
        stranger.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
        stranger.sndtimeo = 5000
        with suppress(zmq.Again):  # it was turned away before it could send
            stranger.send_multipart(frame_of(Boom(tmp_path / "ran")))
        assert not server.poll(WAIT_MS), "a stranger's frame arrived"
        assert not (tmp_path / "ran").exists(), "a stranger's pickle was loaded"


def test_the_processes_of_a_run_hear_one_another(utils: ModuleType, context: zmq.Context[Any]) -> None:
    message = utils.ZMQMessage.create(utils.ZMQRequestType.GET_DATA, "me", {"weights": torch.arange(5)})
    with (
        utils.create_zmq_socket(context, zmq.ROUTER, "127.0.0.1") as server,
        utils.create_zmq_socket(context, zmq.DEALER, "127.0.0.1", identity=b"TQ_STORAGE_1") as client,
    ):
        client.connect(f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}")
        client.send_multipart(message.serialize())
        assert server.poll(5000)
        identity, *frames = server.recv_multipart()
        received = utils.ZMQMessage.deserialize([bytearray(frame) for frame in frames])
        assert identity == b"TQ_STORAGE_1" and torch.equal(received.body["weights"], torch.arange(5))
        server.send_multipart([identity, b"done"])
        assert client.poll(5000) and client.recv() == b"done"


def test_what_imported_the_function_before_has_the_new_one(utils: ModuleType) -> None:
    for name in ("controller", "storage.simple_storage", "storage.managers.base"):
        assert importlib.import_module(f"transfer_queue.{name}").create_zmq_socket is utils.create_zmq_socket
    assert utils.create_zmq_socket.__module__ == "transfer_queue.utils.zmq_utils" and hasattr(
        utils.create_zmq_socket, "__wrapped__"
    )


def test_without_a_key_or_for_an_unknown_kind_there_is_no_socket(
    utils: ModuleType, context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ValueError, match="TransferQueue made a socket of the kind PUB: only ROUTER and DEALER are known here"
    ):
        utils.create_zmq_socket(context, zmq.PUB, "127.0.0.1")

    def none() -> bytes:
        raise RuntimeError("this Ray job has no run key")

    monkeypatch.setattr(run_key, "key", none)
    with pytest.raises(RuntimeError, match="no run key"):
        utils.create_zmq_socket(context, zmq.ROUTER, "127.0.0.1")

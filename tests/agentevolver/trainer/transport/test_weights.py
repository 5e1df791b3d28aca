from __future__ import annotations

import asyncio
import importlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from agentevolver.trainer.transport import weights

JOB = f"{os.getpid():08x}"  # the first of a Ray in truth, so that it is the same everywhere
VERLS = f"ipc:///tmp/rl-colocate-zmq-{JOB}-replica-0-rank-1.sock"


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """verl's module, with both ends as a run has them (our plugin, loaded with verl, installs it)."""
    module = importlib.import_module("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer")
    # What both ends do beside the transfer concerns an accelerator.
    device = SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None, ipc_collect=lambda: None)
    monkeypatch.setattr(module, "get_torch_device", lambda: device)
    monkeypatch.setattr(module, "is_support_ipc", lambda: False)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run's folder for weights. Pytest's own one is too long for a socket, and is made before the temporary folder is
    another one."""
    with tempfile.TemporaryDirectory(prefix="ae-", dir="/tmp") as own:
        (Path(own) / "tmp").mkdir()
        monkeypatch.setattr("tempfile.tempdir", f"{own}/tmp")
        path = weights.new_folder()
        assert path.parent == Path(own) / "tmp"
        monkeypatch.setenv(weights.FOLDER, str(path))
        yield path


@pytest.mark.thorough
def test_both_ends_meet_in_the_runs_folder_which_only_its_user_enters(transfer: ModuleType, folder: Path) -> None:
    sent = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.ones(2)}
    received: dict[str, torch.Tensor] = {}
    seen: list[Any] = []

    def keep(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
        seen.append([(path.name, path.is_socket()) for path in folder.iterdir()])
        received.update({name: tensor.clone() for name, tensor in bucket})

    receiver = transfer.BucketedWeightReceiver(zmq_handle=VERLS, device=torch.device("cpu"), use_shm=True)
    thread = threading.Thread(target=receiver.receive_weights, kwargs={"on_bucket_received": keep}, daemon=True)
    thread.start()
    sender = transfer.BucketedWeightSender(zmq_handle=VERLS, bucket_size_mb=1, use_shm=True)
    asyncio.run(asyncio.wait_for(sender.async_send_weights(iter(sent.items())), 20))
    thread.join(20)
    assert received.keys() == sent.keys() and all(torch.equal(received[name], sent[name]) for name in sent)
    assert seen == [[(f"{JOB}-replica-0-rank-1.sock", True)]]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not Path(VERLS.removeprefix("ipc://")).exists()


def test_a_folder_that_others_enter_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="is not a folder that only this user can enter"):
        weights.private_handle(VERLS)
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        weights.private_handle(VERLS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(PermissionError):
        weights.private_handle(VERLS)


def test_a_node_that_lacks_the_folder_above_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(weights.FOLDER, str(tmp_path / "ae-run" / "tmp" / "ae-w-1"))
    weights.private_handle(VERLS)
    assert (tmp_path / "ae-run" / "tmp" / "ae-w-1").stat().st_mode & 0o777 == 0o700

from __future__ import annotations

import importlib
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from torch.distributed import TCPStore

from agentevolver.trainer.transport import worker
from tests.free_ports import free_port


@pytest.fixture
def module() -> ModuleType:
    one = cast(ModuleType, SimpleNamespace(TCPStore=TCPStore))
    worker.bind_to_host(one)
    return one


def addresses(port: int) -> set[str]:
    own = psutil.Process().net_connections("tcp")
    return {one.laddr.ip for one in own if one.status == psutil.CONN_LISTEN and one.laddr.port == port}


def store(module: Any, port: int, **more: Any) -> Any:
    return module.TCPStore(
        host_name="127.0.0.1", port=port, world_size=1, timeout=timedelta(seconds=10), multi_tenant=True, **more
    )


def test_a_store_listens_at_its_host_alone_and_serves(module: ModuleType) -> None:
    port = free_port()
    served = store(module, port, is_master=True)
    served.set("key", "value")
    assert store(module, port, is_master=False).get("key") == b"value"
    assert addresses(port) == {"127.0.0.1"}


def test_torch_looks_the_store_up_where_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(torchs, "TCPStore", TCPStore)
    worker.bind_to_host(torchs)
    port = free_port()
    url = f"tcp://127.0.0.1:{port}?rank=0&world_size=1"
    _, rank, size = next(torchs.rendezvous(url, timeout=timedelta(seconds=10)))
    assert (rank, size) == (0, 1) and addresses(port) == {"127.0.0.1"}

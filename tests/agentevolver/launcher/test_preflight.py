"""Checks before a start: what they let pass, and what they say of the rest."""

import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentevolver.config.checks import load
from agentevolver.launcher.experiment import (
    START,
    Presence,
    check_checkpoint,
    check_disk,
    check_ray_address,
    env_service_presence,
)
from agentevolver.launcher.records import RunRecord, RunRegistry
from agentevolver.utils.errors import LaunchError, UsageError
from agentevolver.utils.processes import identify
from tests.answers import Asked, answering
from tests.free_ports import free_port


@pytest.fixture
def registry(tmp_path: Path) -> RunRegistry:
    return RunRegistry(tmp_path / "run")


def says(facts: dict[str, object]) -> Callable[[Asked], tuple[int, bytes]]:
    """Answer with some JSON, or with `OK`, as AgentEvolver's environment service does."""
    return lambda asked: (200, json.dumps(facts).encode() if facts else b"OK")


SERVICE = {"name": "agentevolver environment service", "version": "0.1.0", "env_types": ["pocket", "bfcl"]}


async def test_a_free_local_port_means_start(registry: RunRegistry) -> None:
    assert await env_service_presence(f"http://127.0.0.1:{free_port()}", ["pocket"], registry, external=False) == START


@pytest.mark.parametrize(
    ("facts", "who"),
    [
        ({}, "a service that does not identify itself"),
        ({**SERVICE, "launch_id": None}, r"agentevolver environment service 0\.1\.0 of pocket, bfcl, started by no"),
        ({**SERVICE, "launch_id": "260101-000000-beef"}, "started by launch 260101-000000-beef"),
        ({**SERVICE, "launch_id": "../../etc/passwd"}, "started by launch"),
    ],
)
async def test_a_service_of_somebody_elses_is_used_where_the_configuration_declares_it_and_nowhere_else(
    facts: dict[str, object], who: str, registry: RunRegistry
) -> None:
    with answering(says(facts)) as url:
        with pytest.raises(LaunchError, match=rf"{who}.*, which no launcher of this checkout has started"):
            await env_service_presence(url, ["pocket"], registry, external=False)
        presence = await env_service_presence(url, ["pocket"], registry, external=True)
        assert presence.whose is not None and presence.whose.startswith("declared as external: ")


async def test_a_service_that_does_not_serve_the_environment_is_refused_declared_or_not(registry: RunRegistry) -> None:
    with answering(says({**SERVICE, "launch_id": None})) as url:
        for external in (False, True):
            with pytest.raises(LaunchError, match=r"of pocket, bfcl, .* and this run needs appworld: choose another"):
                await env_service_presence(url, ["appworld", "bfcl"], registry, external=external)


@pytest.mark.service
async def test_a_service_that_another_run_of_this_checkout_started_is_used_as_long_as_its_process_lives(
    tmp_path: Path, registry: RunRegistry
) -> None:
    own = identify(os.getpid())
    assert own is not None
    with answering(says({**SERVICE, "launch_id": "r1"})) as url:
        server = subprocess.Popen(
            [sys.executable, "-c", "input()", f"--port={urlsplit(url).port}"], stdin=subprocess.PIPE
        )
        process = identify(server.pid)
        assert process is not None
        record = RunRecord(run_id="r1", experiment_dir=str(tmp_path), launcher=own, started_at="now")
        registry.write(record.with_process("env_service", process))
        try:
            presence = await env_service_presence(url, ["pocket"], registry, external=False)
            assert presence == Presence(
                "which belongs to run r1 and ends with it (one of its own: env_service.env_url=http://127.0.0.1:PORT)"
            )
        finally:
            server.kill()
            server.communicate()
        with pytest.raises(LaunchError, match="which no launcher of this checkout has started"):
            await env_service_presence(url, ["pocket"], registry, external=False)


async def test_a_ray_head_to_join_must_be_there() -> None:
    with pytest.raises(UsageError, match="must be HOST:PORT"):
        await check_ray_address("auto")
    with pytest.raises(LaunchError, match="no Ray head accepts connections"):
        await check_ray_address(f"127.0.0.1:{free_port()}")
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        await check_ray_address(f"127.0.0.1:{head.getsockname()[1]}")


async def test_a_cluster_that_asks_for_no_token_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def there(*_: object) -> bool:
        return True

    monkeypatch.setattr("agentevolver.launcher.experiment.reachable", there)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    await check_ray_address("10.0.0.1:6379")
    monkeypatch.delenv("RAY_AUTH_MODE")
    await check_ray_address("127.0.0.1:6379")
    assert not caplog.records
    await check_ray_address("10.0.0.1:6379")
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "ray.address=10.0.0.1:6379: anybody who reaches it can run code there; close its network"
    )


def test_a_full_disk_is_noticed_before_the_folder_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_disk(tmp_path / "a" / "b")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 5e8))
    with pytest.raises(LaunchError, match=r"0\.5 GB free where .* lies, at least 2 are needed"):
        check_disk(tmp_path / "a" / "b")


def test_a_checkpoint_that_these_ranks_cannot_load_is_refused_before_a_start(tmp_path: Path) -> None:
    overrides = ["device=cpu", f"experiment.root={tmp_path}", "trainer.n_gpus_per_node=4"]
    config = load(None, overrides).config
    check_checkpoint(config)
    folder = Path(config.trainer.default_local_dir)
    (folder / "global_step_4" / "actor").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("4")
    for name in ("data.pt", "trainer.pt", "actor/model_world_size_8_rank_0.pt"):
        with zipfile.ZipFile(folder / "global_step_4" / name, "w"):
            pass
    layout = folder / "global_step_4" / "actor" / "fsdp_config.json"
    layout.write_text(json.dumps({"FSDP_version": 2, "world_size": 4}))
    check_checkpoint(config)
    layout.write_text(json.dumps({"FSDP_version": 1, "world_size": 8}))
    with pytest.raises(UsageError, match="8 ranks of FSDP1, which cannot resume on 4"):
        check_checkpoint(config)

"""Checks before a start: what they let pass, and what they say of the rest."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentevolver.config.checks import load
from agentevolver.launcher.experiment import (
    START,
    Presence,
    check_checkpoint,
    check_disk,
    check_model,
    check_ray_address,
    env_service_presence,
)
from agentevolver.launcher.records import RunRecord, RunRegistry
from agentevolver.utils.errors import LaunchError, UsageError
from agentevolver.utils.health import Health
from agentevolver.utils.processes import identify
from tests.free_ports import free_port


@pytest.fixture
def web_page() -> Iterator[str]:
    """Something that answers on a port and is no environment service."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def registry(tmp_path: Path) -> RunRegistry:
    return RunRegistry(tmp_path / "run")


class Answering:
    """A server that answers its health URL with some JSON, or with `OK`, as AgentEvolver's environment service does."""

    def __init__(self, **facts: object) -> None:
        body = json.dumps(facts).encode() if facts else b"OK"

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> "Answering":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


SERVICE = {"name": "agentevolver environment service", "version": "0.1.0", "env_types": ["pocket", "bfcl"]}


async def test_a_free_local_port_means_start(registry: RunRegistry) -> None:
    assert await env_service_presence(f"http://127.0.0.1:{free_port()}", ["pocket"], registry, external=False) == START


@pytest.mark.parametrize(
    ("facts", "who"),
    [
        ({}, "a service that does not say who it is"),
        (
            {**SERVICE, "launch_id": None},
            r"agentevolver environment service 0\.1\.0 of pocket, bfcl, started by no launcher",
        ),
        ({**SERVICE, "launch_id": "260101-000000-beef"}, "started by launch 260101-000000-beef"),
        ({**SERVICE, "launch_id": "../../etc/passwd"}, "started by launch"),
        ({"name": "another", "version": 3}, "a service that does not say who it is"),
    ],
)
async def test_a_service_of_somebody_elses_is_used_where_the_configuration_declares_it_and_nowhere_else(
    facts: dict[str, object], who: str, registry: RunRegistry
) -> None:
    with Answering(**facts) as service:
        with pytest.raises(
            LaunchError, match=rf"{who}.*, which no launcher of this checkout has started: .*env_service\.external=true"
        ):
            await env_service_presence(service.url, ["pocket"], registry, external=False)
        presence = await env_service_presence(service.url, ["pocket"], registry, external=True)
        assert presence.whose is not None and presence.whose.startswith("declared as external: ")


async def test_a_service_that_does_not_serve_the_environment_is_refused_declared_or_not(registry: RunRegistry) -> None:
    with Answering(**SERVICE, launch_id=None) as service:
        for external in (False, True):
            with pytest.raises(
                LaunchError, match=r"of pocket, bfcl, .* and this run needs appworld: choose another port"
            ):
                await env_service_presence(service.url, ["appworld", "bfcl"], registry, external=external)


@pytest.mark.service
async def test_a_service_that_another_run_of_this_checkout_started_is_used_as_long_as_its_process_lives(
    tmp_path: Path, registry: RunRegistry
) -> None:
    own = identify(os.getpid())
    assert own is not None
    with Answering(**SERVICE, launch_id="r1") as service:
        server = subprocess.Popen([sys.executable, "-c", "input()", f"--port={service.port}"], stdin=subprocess.PIPE)
        process = identify(server.pid)
        assert process is not None
        record = RunRecord(run_id="r1", experiment_dir=str(tmp_path), launcher=own, started_at="now")
        registry.write(record.with_process("env_service", process))
        try:
            presence = await env_service_presence(service.url, ["pocket"], registry, external=False)
            assert presence == Presence(
                "which belongs to run r1 and ends with it (one of its own: env_service.env_url=http://127.0.0.1:PORT)"
            )
        finally:
            server.kill()
            server.communicate()
        with pytest.raises(LaunchError, match="which no launcher of this checkout has started"):
            await env_service_presence(service.url, ["pocket"], registry, external=False)


async def test_a_declared_service_that_is_not_there_is_named(registry: RunRegistry) -> None:
    with pytest.raises(LaunchError, match="does not answer \\(connection refused\\); start it there"):
        await env_service_presence(f"http://127.0.0.1:{free_port()}", ["pocket"], registry, external=True)


async def test_a_port_of_something_else_is_named_with_a_way_out(web_page: str, registry: RunRegistry) -> None:
    with pytest.raises(
        LaunchError, match=r"port \d+ is taken by something .* \(HTTP 501 .*choose another port"
    ) as caught:
        await env_service_presence(web_page, ["pocket"], registry, external=False)
    assert caught.value.exit_code == 1


async def test_a_port_that_is_bound_and_silent_is_taken(registry: RunRegistry) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(LaunchError, match="is taken by something"):
            await env_service_presence(
                f"http://127.0.0.1:{bound.getsockname()[1]}", ["pocket"], registry, external=False
            )


async def test_a_remote_service_that_is_dead_is_named(monkeypatch: pytest.MonkeyPatch, registry: RunRegistry) -> None:
    async def refused(url: str) -> Health:
        return Health("connection refused")

    monkeypatch.setattr("agentevolver.launcher.experiment.examine", refused)
    with pytest.raises(
        LaunchError, match=r"env_service.env_url=http://gpu7:8080 does not answer \(connection refused\)"
    ):
        await env_service_presence("http://gpu7:8080", ["pocket"], registry, external=False)


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
        "ray.address=10.0.0.1:6379: whoever reaches this cluster runs code on it; close its network"
    )


def test_a_local_model_must_exist_and_a_hub_name_passes(tmp_path: Path) -> None:
    check_model(str(tmp_path))
    check_model("Qwen/Qwen2.5-7B-Instruct")
    for missing in (str(tmp_path / "gone"), "./gone", "~/gone"):
        with pytest.raises(UsageError, match=r"model\.path=.* does not exist"):
            check_model(missing)


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
    with pytest.raises(UsageError, match="8 ranks of FSDP1 and can only be resumed on as many, not on 4"):
        check_checkpoint(config)


def test_a_torn_checkpoint_is_said_and_lost_ones_are_refused_before_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(None, ["device=cpu", f"experiment.root={tmp_path}"]).config
    folder = Path(config.trainer.default_local_dir)
    (folder / "global_step_4" / "actor").mkdir(parents=True)
    check_checkpoint(config)
    assert "global_step_4 has no policy in actor/; no step was finished, so the run starts over" in caplog.text
    (Path(config.experiment.dir) / "metrics.jsonl").write_text('{"step": 4}\n')
    with pytest.raises(UsageError, match="holds the metrics of 4 steps and no whole checkpoint"):
        check_checkpoint(config)

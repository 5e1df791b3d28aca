"""Checks before a start: what they let pass, and what they say of the rest."""

import http.server
import json
import shutil
import socket
import threading
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentevolver.launcher.errors import LaunchError, UsageError
from agentevolver.launcher.preflight import Presence, check_checkpoint, check_disk, check_model, check_ray_address, env_service_presence
from agentevolver.settings import load
from tests.agentevolver.launcher.fakes import free_port


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


async def test_a_free_local_port_means_start() -> None:
    assert await env_service_presence(f"http://127.0.0.1:{free_port()}") is Presence.START


async def test_a_port_of_something_else_is_named_with_a_way_out(web_page: str) -> None:
    with pytest.raises(LaunchError, match=r"port \d+ is taken by something .* \(HTTP 501 .*choose another port") as caught:
        await env_service_presence(web_page)
    assert caught.value.exit_code == 1


async def test_a_port_that_is_bound_and_silent_is_taken() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(LaunchError, match="is taken by something"):
            await env_service_presence(f"http://127.0.0.1:{bound.getsockname()[1]}")


async def test_a_remote_service_that_is_dead_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(url: str) -> str:
        return "connection refused"

    monkeypatch.setattr("agentevolver.launcher.preflight.unhealthy", refused)
    with pytest.raises(LaunchError, match=r"env_service.env_url=http://gpu7:8080 does not answer \(connection refused\)"):
        await env_service_presence("http://gpu7:8080")


async def test_a_ray_head_to_join_must_be_there() -> None:
    with pytest.raises(UsageError, match="must be HOST:PORT"):
        await check_ray_address("auto")
    with pytest.raises(LaunchError, match="no Ray head accepts connections"):
        await check_ray_address(f"127.0.0.1:{free_port()}")
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        await check_ray_address(f"127.0.0.1:{head.getsockname()[1]}")


async def test_a_cluster_that_asks_for_no_token_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def there(*_: object) -> bool:
        return True

    monkeypatch.setattr("agentevolver.launcher.preflight.reachable", there)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    await check_ray_address("10.0.0.1:6379")
    monkeypatch.delenv("RAY_AUTH_MODE")
    await check_ray_address("127.0.0.1:6379")
    assert not caplog.records
    await check_ray_address("10.0.0.1:6379")
    (record,) = caplog.records
    assert record.getMessage().startswith("ray.address=10.0.0.1:6379: whoever reaches this cluster runs code on it; close its network")


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


def test_a_torn_checkpoint_is_said_and_lost_ones_are_refused_before_a_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(None, ["device=cpu", f"experiment.root={tmp_path}"]).config
    folder = Path(config.trainer.default_local_dir)
    (folder / "global_step_4" / "actor").mkdir(parents=True)
    check_checkpoint(config)
    assert "global_step_4 has no policy in actor/; no step was finished, so the run starts over" in caplog.text
    (Path(config.experiment.dir) / "metrics.jsonl").write_text('{"step": 4}\n')
    with pytest.raises(UsageError, match="holds the metrics of 4 steps and no whole checkpoint"):
        check_checkpoint(config)


def test_ray_has_a_place_for_every_rank() -> None:
    assert load(None, ["device=cpu", "trainer.n_gpus_per_node=2"]).ray.num_gpus == 2

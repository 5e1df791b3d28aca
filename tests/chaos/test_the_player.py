"""The player with vLLM and the shipped policy: equal names give equal samples through swaps, crowds and deaths."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentevolver.coevolve.player.client import PlayerClient, PlayerRefused, PlayFailed
from agentevolver.coevolve.types import Play
from agentevolver.config.checks import load
from agentevolver.config.load import resolved_tree
from agentevolver.launcher.plan import as_yaml
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.types import Task
from agentevolver.utils.health import PLAYER, examine
from agentevolver.utils.net import take_any_port
from env_service.client import AsyncEnvClient
from env_service.registry import resolve
from tests.env_service.local_hosts import serving

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


class Process:
    """The player as the launcher starts it."""

    def __init__(self, folder: Path, env_url: str, port: int, model: Path) -> None:
        folder.mkdir(exist_ok=True)
        loaded = load(
            None,
            [
                *("device=cpu", "env_service.env_type=pocket", f"env_service.env_url={env_url}"),
                *(f"experiment.root={folder}", f"actor_rollout_ref.model.path={model}"),
                "env_service.unavailable_timeout_s=2",
            ],
        )
        config = folder / "config.yaml"
        config.write_text(as_yaml(resolved_tree(loaded.config)))
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "player.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentevolver.coevolve.player", f"--config={config}", f"--port={port}"],
                cwd=ROOT,
                env=os.environ | loaded.env | {"AGENTEVOLVER_RUN_ID": "me", "PLAYER_TOKEN": "right"},
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def engine(self) -> psutil.Process:
        found = psutil.Process(self.process.pid).children(recursive=True)
        (engine,) = (process for process in found if process.name().startswith("VLLM"))
        return engine

    async def up(self) -> None:
        async with asyncio.timeout(400):
            while (health := await examine(f"{self.url}/healthz")).reason is not None:
                assert self.process.poll() is None, self.said
                await asyncio.sleep(0.2)
        assert health.identity is not None
        assert (health.identity.name, health.identity.launch_id) == (PLAYER, "me")

    async def wait(self) -> int:
        return await asyncio.to_thread(self.process.wait, 60)

    def end(self) -> None:
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
        self.process.wait()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


def perturbed(target: Path) -> Path:
    """Copy the shipped policy with a little noise on every weight."""
    shutil.copytree(seed_policy_path(), target)
    weights = target / "model.safetensors"
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        for name, tensor in load_file(weights).items()
    }
    save_file(noisy, weights, {"format": "pt"})
    return target


@asynccontextmanager
async def running(process: Process) -> AsyncIterator[Process]:
    try:
        await process.up()
        yield process
    finally:
        process.end()


async def test_equal_names_with_equal_weights_are_equal_plays_whatever_happens_in_between(tmp_path: Path) -> None:
    seed, noisy, port = seed_policy_path(), perturbed(tmp_path / "noisy"), take_any_port()
    async with (
        serving(resolve(["pocket"])) as service,
        PlayerClient(f"http://127.0.0.1:{port}", "right", timeout_s=300) as client,
    ):
        async with AsyncEnvClient(service.url) as worlds:
            tasks = [Task(one, "pocket") for one in (await worlds.get_env_profile("pocket", "train", {"n": 12}))]

        async def play(folder: Path, name: str = "a") -> list[list[Play]]:
            return await asyncio.gather(*(client.play(folder, task, 4, f"{name} {task.task_id}") for task in tasks[:6]))

        async def play_in_a_crowd(folder: Path) -> list[list[Play]]:
            """The same in the company of some hundred others, so that it takes long enough to be killed half-way."""
            crowd = [client.play(folder, task, 32, f"crowd {task.task_id}") for task in tasks]
            return (await asyncio.gather(play(folder), *crowd))[0]

        async with running(Process(tmp_path / "first", service.url, port, seed)) as process:
            alone = await play(seed)
            assert await play(seed) == alone
            assert await play(seed, "b") != alone
            # Others in the engine's batches change nothing, and neither do weights that come and go.
            crowd = [client.play(seed, task, 6, f"crowd {i}") for i, task in enumerate(tasks)]
            asked = await asyncio.gather(play(seed), *crowd, play(noisy), play(seed), play(noisy))
            assert asked[0] == asked[-2] == alone
            assert asked[-1] == asked[-3] != alone
            with pytest.raises(PlayerRefused, match="is not there"):
                await play(tmp_path / "nowhere")

            # The server is killed while it plays: its engine goes with it, the caller asks the next one.
            asking = asyncio.create_task(play_in_a_crowd(noisy))
            await asyncio.sleep(0.2)
            engine = process.engine()
            assert not asking.done(), "it is not killed while it plays"
            process.process.kill()
            await process.wait()
            await until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, "the engine ends")

        # The next one starts with other weights, which are what was swapped in before.
        async with running(Process(tmp_path / "second", service.url, port, noisy)) as process:
            assert await asking == asked[-1] == await play(noisy)
            assert await play(seed) == alone

            # Its engine dies alone: it ends, so that it is started again, and says no number.
            asking = asyncio.create_task(play_in_a_crowd(seed))
            await asyncio.sleep(0.2)
            engine = process.engine()
            assert not asking.done(), "it does not die while it plays"
            engine.send_signal(signal.SIGKILL)
            assert await process.wait() == 1, process.said
            asking.cancel()


async def test_an_environment_service_that_is_away_fails_the_play(tmp_path: Path) -> None:
    port = take_any_port()
    nobody = f"http://127.0.0.1:{take_any_port()}"
    async with running(Process(tmp_path / "lonely", nobody, port, seed_policy_path())) as process:
        async with PlayerClient(process.url, "right") as client:
            with pytest.raises(PlayFailed, match="env_error"):
                await client.play(seed_policy_path(), Task("t", "pocket"), 2, "a")
        process.process.terminate()
        assert await process.wait() == 0, process.said

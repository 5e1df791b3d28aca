"""The server of frozen policies with vLLM and the shipped policy: equal seeds give equal samples through changes of the
weights, crowds and deaths."""

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
from transformers import AutoTokenizer

from agentevolver.config.checks import load
from agentevolver.config.load import resolved_tree
from agentevolver.launcher.plan import as_yaml
from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.rollout.engine import EngineError
from agentevolver.trainer.job.frozen_engine import FrozenEngine
from agentevolver.utils.health import PLAYER, examine
from agentevolver.utils.net import take_any_port

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


class Process:
    """The server as the launcher starts it."""

    def __init__(self, folder: Path, port: int, model: Path) -> None:
        folder.mkdir(exist_ok=True)
        loaded = load(
            None,
            [
                *("device=cpu", "env_service.env_type=pocket"),
                *(f"experiment.root={folder}", f"actor_rollout_ref.model.path={model}"),
            ],
        )
        config = folder / "config.yaml"
        config.write_text(as_yaml(resolved_tree(loaded.config)))
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "frozen.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentevolver.trainer.job.frozen", f"--config={config}", f"--port={port}"],
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


async def test_equal_seeds_with_equal_weights_are_equal_samples_whatever_happens_in_between(tmp_path: Path) -> None:
    seed, noisy, port = seed_policy_path(), perturbed(tmp_path / "noisy"), take_any_port()
    tokenizer = AutoTokenizer.from_pretrained(seed)
    prompts = [tokenizer.encode(f"user: add note {word}\nassistant:") for word in ("mug", "hat", "pen", "cup")]
    engines: dict[Path, FrozenEngine] = {}

    async def samples(folder: Path, first: int = 0, n: int = 6) -> list[list[int]]:
        if folder not in engines:
            url = f"http://127.0.0.1:{port}"
            engines[folder] = FrozenEngine(url, str(folder), max_model_len=256, timeout_s=300, key="right")
        asked = [
            engines[folder].generate("i", prompt, {"temperature": 1.0, "max_tokens": 40, "seed": first + number})
            for prompt in prompts
            for number in range(n)
        ]
        return [generated.ids for generated in await asyncio.gather(*asked)]

    async def samples_in_a_crowd(folder: Path) -> list[list[int]]:
        """The same in the company of some hundred others, so that it takes long enough to be killed half-way."""
        return (await asyncio.gather(samples(folder), samples(folder, 1000, 200)))[0]

    async with running(Process(tmp_path / "first", port, seed)) as process:
        alone = await samples(seed)
        assert await samples(seed) == alone != await samples(seed, first=100)
        # Others in the engine's batches change nothing, and neither do weights that come and go.
        crowd = [samples(seed, first=200 + i) for i in range(6)]
        asked = await asyncio.gather(samples(seed), *crowd, samples(noisy), samples(seed), samples(noisy))
        assert asked[0] == asked[-2] == alone
        assert asked[-1] == asked[-3] != alone
        with pytest.raises(EngineError, match="HTTP 409"):
            await samples(tmp_path / "nowhere")

        # The server is killed while it samples: its engine goes with it, the caller asks the next one.
        asking = asyncio.create_task(samples_in_a_crowd(noisy))
        await asyncio.sleep(0.2)
        engine = process.engine()
        assert not asking.done(), "it is not killed while it samples"
        process.process.kill()
        await process.wait()
        await until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, "the engine ends")

    # The next one starts with other weights.
    async with running(Process(tmp_path / "second", port, noisy)) as process:
        assert await asking == asked[-1] == await samples(noisy)
        assert await samples(seed) == alone

        # Its engine dies alone: it ends, so that it is started again.
        asking = asyncio.create_task(samples_in_a_crowd(seed))
        await asyncio.sleep(0.2)
        engine = process.engine()
        assert not asking.done(), "it does not die while it samples"
        engine.send_signal(signal.SIGKILL)
        assert await process.wait() == 1, process.said
        asking.cancel()

    async with running(Process(tmp_path / "third", port, seed)) as process:
        process.process.terminate()
        assert await process.wait() == 0, process.said
    for one in engines.values():
        await one.close()

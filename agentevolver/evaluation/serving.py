"""Servers that an evaluation starts. They end with this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.schema import Settings
from agentevolver.trainer.job.frozen_engine import PLAYER_TOKEN, FrozenEngine
from agentevolver.utils.errors import LaunchError
from agentevolver.utils.health import unhealthy
from agentevolver.utils.net import take_any_port
from agentevolver.utils.processes import die_with_parent

STOP_S = 10.0
POLL_S = 0.25
LOAD_S = 900.0


@asynccontextmanager
async def serving(
    module: Sequence[str], what: str, log: Path, start_s: float, env: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """Run a Python module as a server on a free port. Yield its URL once `/healthz` answers.

    Args:
        module: arguments of `python -m`, without the port.
        what: name of the server in errors.
        start_s: seconds until the server must answer.
        env: environment variables; None: this process's.

    Raises:
        LaunchError: the server does not start.
    """
    port = take_any_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        service = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *module, "--port", str(port)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            # A process group of its own, so that `killpg` also ends what the server started (vLLM's engine).
            start_new_session=True,
            # If this process is killed, the kernel ends the server.
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
        )
    try:
        await _up(service, f"{url}/healthz", what, log, start_s)
        yield url
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(service.pid, number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.wait(), STOP_S)


async def _up(service: asyncio.subprocess.Process, url: str, what: str, log: Path, start_s: float) -> None:
    began = asyncio.get_running_loop().time()
    while (reason := await unhealthy(url)) is not None:
        if service.returncode is not None or asyncio.get_running_loop().time() - began > start_s:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise LaunchError(f"{what} did not start ({reason}): {lines[-1] if lines else 'its log is empty'}")
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def playing(config: DictConfig, settings: Settings, folder: Path, scratch: Path) -> AsyncIterator[FrozenEngine]:
    """Serve the weights of a Hugging Face folder with vLLM and yield their engine.

    Args:
        scratch: folder for the server's configuration and log.

    Raises:
        LaunchError: vLLM does not start.
    """
    own = {"actor_rollout_ref": {"model": {"path": str(folder), "tokenizer_path": None}}}
    path, key = scratch / "serving.yaml", secrets.token_urlsafe()
    path.write_text(OmegaConf.to_yaml(OmegaConf.merge(config, own)), encoding="utf-8")
    module = ("agentevolver.trainer.job.frozen", "--config", str(path))
    # A random key keeps other users of the machine off the server. The environment hides it; arguments are visible to
    # all.
    env = {**os.environ, PLAYER_TOKEN: key}
    async with serving(module, f"vLLM with {folder}", scratch / "serving.log", LOAD_S, env) as url:
        length, timeout_s = settings.sizes.max_model_len, settings.rollout.step_timeout_s
        engine = FrozenEngine(url, str(folder), max_model_len=length, timeout_s=timeout_s, key=key)
        try:
            yield engine
        finally:
            await engine.close()

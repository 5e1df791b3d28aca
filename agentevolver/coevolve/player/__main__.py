"""`python -m agentevolver.coevolve.player --config experiments/<project>/<experiment>/config.yaml --port N`: serve the
frozen policies of a run on loopback.

It answers /healthz once the engine has loaded the run's policy. Callers send the secret PLAYER_TOKEN, where it is set.
A dead engine ends it with exit code 1, so that whoever started it starts it again; a configuration that cannot be
played ends it with 2.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from agentevolver.coevolve.player.chat import make_chat
from agentevolver.coevolve.player.client import PLAYER_TOKEN, PlayerRefused
from agentevolver.coevolve.player.engine import engine_environment, set_environment, start_engine
from agentevolver.coevolve.player.play import make_player
from agentevolver.coevolve.player.server import make_app
from agentevolver.coevolve.player.weights import local
from agentevolver.config.checks import for_verl, from_config
from agentevolver.errors import ConfigError
from agentevolver.utils.secrets import LIBRARIES, adopt_secrets, secret
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import Server, server_config
from env_service.client import AsyncEnvClient

HOST = "127.0.0.1"
WATCH_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stopped; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.coevolve.player", description="Serve the frozen policies of a run."
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's config.yaml, as the launcher wrote it")
    parser.add_argument("--port", type=int, default=8095, help="port to listen on, on loopback (default 8095)")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = OmegaConf.load(options.config)
        assert isinstance(config, DictConfig)
        return asyncio.run(_serve(config, options.port))
    except (ConfigError, PlayerRefused) as error:
        print(f"configuration: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def _serve(config: DictConfig, port: int) -> int:
    settings = from_config(config)
    if not settings.shared_files:
        os.umask(0o077)
    adopt_secrets(LIBRARIES)
    verl = for_verl(config)
    set_environment(engine_environment(verl, settings.device_env))
    from transformers import AutoTokenizer

    model = verl.actor_rollout_ref.model
    folder = local(str(model.path), fetch=True)
    tokenizer = AutoTokenizer.from_pretrained(
        model.get("tokenizer_path") or str(folder), trust_remote_code=model.trust_remote_code
    )
    died = asyncio.Event()
    engine = await start_engine(
        verl,
        folder,
        tokenizer,
        gpus=settings.coevolve.executor.gpus if settings.device != "cpu" and settings.coevolve.enable else 0,
        timeout_s=settings.rollout.step_timeout_s,
        # As in training: where kernels are not deterministic, seeds cost and give nothing.
        seeded=settings.trainer.deterministic or bool(verl.actor_rollout_ref.rollout.get("full_determinism")),
        on_death=died.set,
    )
    service = settings.env_service
    client = AsyncEnvClient(service.env_url, timeout_s=service.timeout_s)
    try:
        # In self-play games ask for replies; their episodes are the training's own.
        chat = (
            make_chat(config, settings, engine, tokenizer, folder)
            if getattr(settings.recipe("self_play"), "enable", False)
            else None
        )
        player = None if chat is not None else make_player(config, settings, engine, tokenizer, folder, client)
        access = Access(HOST, secret(PLAYER_TOKEN), PLAYER_TOKEN)
        app = make_app(player, chat=chat, access=access, status=lambda: "the engine has ended" if engine.dead else "ok")
        server = Server(server_config(app, host=HOST, port=port, log_level="warning", stop_s=5))
        serving = asyncio.create_task(server.serve())
        print(f"plays {folder} and what it is asked for, at http://{HOST}:{port}", flush=True)
        watching = asyncio.create_task(died.wait())
        while not (serving.done() or engine.dead):
            await asyncio.wait({serving, watching}, timeout=WATCH_S, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        server.should_exit = True
        await serving
        return 1 if engine.dead or not server.started else 0
    finally:
        await client.close()
        engine.close()


if __name__ == "__main__":
    sys.exit(main())

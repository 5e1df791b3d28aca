"""Serve frozen policies: vLLM's OpenAI server on loopback, with the engine arguments of the run's rollouts.

`python -m agentevolver.trainer.job.frozen --config EXPERIMENT/config.yaml`. A request names its checkpoint as `model`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from omegaconf import DictConfig, OmegaConf

from agentevolver.config.checks import for_verl, from_config
from agentevolver.config.schema import Settings
from agentevolver.trainer.checkpoints import model_difference
from agentevolver.trainer.job.frozen_engine import PLAYER_TOKEN
from agentevolver.utils.errors import ConfigError, last_line
from agentevolver.utils.health import PLAYER, health_facts
from agentevolver.utils.secrets import LIBRARIES, adopt_secrets, secret
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import WebServer, server_config
from agentevolver.utils.web.shield import Shield, send_json

logger = logging.getLogger(__name__)

HOST, PORT = "127.0.0.1", 8095
MAX_BODY_BYTES = 8 * 1024 * 1024
WATCH_S = 1.0
# Bans the tokens beyond the tokenizer's from sampling, as verl does in training.
VERL_EXTENSION = "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension"
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
# Keys of verl's section `rollout` that are vLLM's arguments of the same name.
SAME = (
    *("dtype", "max_model_len", "max_num_seqs", "enable_chunked_prefill", "max_num_batched_tokens"),
    *("enable_prefix_caching", "logprobs_mode", "enforce_eager", "disable_log_stats", "quantization"),
    *("gpu_memory_utilization", "scheduling_policy"),
)


class CheckpointRefused(Exception):
    """The engine cannot load a checkpoint."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.trainer.job.frozen", description="Serve frozen policies."
    )
    parser.add_argument("--config", type=Path, required=True, help="the run's config.yaml, as the launcher wrote it")
    parser.add_argument("--port", type=int, default=PORT, help=f"port to listen on, on loopback (default {PORT})")
    parser.add_argument(
        "--gpus", type=int, default=0, help="GPUs that are the server's alone; 0: one replica on the run's"
    )
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = OmegaConf.load(options.config)
        assert isinstance(config, DictConfig)
        settings = from_config(config)
        if not settings.shared_files:
            os.umask(0o077)
        adopt_secrets(LIBRARIES)
        return asyncio.run(_serve(for_verl(config), settings, options.port, options.gpus))
    except ConfigError as error:
        print(f"configuration: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def _serve(config: DictConfig, settings: Settings, port: int, gpus: int) -> int:
    for name, value in engine_environment(config, settings.device_env).items():
        os.environ.setdefault(name, value)
    arguments = engine_arguments(config, gpus)
    engine, app = await _start(arguments)
    try:
        served = Checkpoints(app, engine, str(arguments["model"]))
        access = Access(HOST, secret(PLAYER_TOKEN), PLAYER_TOKEN)
        shielded = Shield(served, access=access, body_bytes=MAX_BODY_BYTES, check_json=False)
        server = WebServer(server_config(shielded, host=HOST, port=port, log_level="warning", stop_s=5))
        serving = asyncio.create_task(server.serve())
        print(f"serves {arguments['model']} and other checkpoints of its model at http://{HOST}:{port}", flush=True)
        while not (serving.done() or engine.errored):
            await asyncio.wait({serving}, timeout=WATCH_S)
        server.should_exit = True
        await serving
        # With exit code 1 the launcher starts the server again.
        return 1 if engine.errored or not server.started else 0
    finally:
        engine.shutdown()


async def _start(arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.api_server import build_app, init_app_state
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    # verl passes the arguments through vLLM's command line too, so defaults are the same as in training.
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm", exit_on_error=False))
    try:
        given = parser.parse_args(build_cli_args_from_config(dict(arguments)))
    except SystemExit as error:
        raise ConfigError(
            "actor_rollout_ref.rollout.engine_kwargs.vllm: vLLM does not take these arguments (see the lines above)"
        ) from error
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(given))
    tokenizer: Any = engine.get_tokenizer()
    size = len(await tokenizer if asyncio.iscoroutine(tokenizer) else tokenizer)
    await engine.collective_rpc("monkey_patch_model", kwargs={"vocab_size": size, "banned_token_ids": []})
    tasks = await engine.get_supported_tasks()
    app = build_app(given, tasks, engine.model_config)
    await init_app_state(engine, app.state, given, tasks)
    return engine, app


class Checkpoints:
    """ASGI middleware around vLLM that loads the checkpoint named by a request, and answers `/healthz`.

    The engine holds one checkpoint; a request for another one waits for the requests in flight.
    """

    def __init__(self, app: Any, engine: Any, start: str) -> None:
        self._app = app
        self._engine = engine
        self._start = start
        self._loaded: str | None = version_of(start)
        self._inside = 0
        self._changed = asyncio.Condition()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/healthz":
            dead = self._engine.errored
            facts = health_facts(PLAYER, status="the engine has died" if dead else "ok")
            await send_json(send, 503 if dead else 200, facts)
        elif scope["method"] == "POST":
            await self._post(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _post(self, scope: Any, receive: Any, send: Any) -> None:
        body = await receive()  # the shield passes the whole body at once
        try:
            asked = orjson.loads(body["body"])
            checkpoint = str(asked.pop("model"))
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            await send_json(send, 400, {"detail": "the body must be a JSON object with a checkpoint as `model`"})
            return
        given: list[dict[str, Any]] = [{**body, "body": orjson.dumps(asked)}]

        async def again() -> Any:
            return given.pop() if given else await receive()

        try:
            async with self._holding(checkpoint):
                await self._app(scope, again, send)
        except CheckpointRefused as error:
            await send_json(send, 409, {"detail": str(error)})

    @asynccontextmanager
    async def _holding(self, checkpoint: str) -> AsyncIterator[None]:
        """Keep a checkpoint loaded during the block. Raises CheckpointRefused."""
        wanted = await asyncio.to_thread(version_of, checkpoint)
        async with self._changed:
            await self._changed.wait_for(lambda: self._loaded == wanted or not self._inside)
            if self._loaded != wanted:
                await self._load(checkpoint)
                self._loaded = wanted
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    async def _load(self, checkpoint: str) -> None:
        try:
            difference = await asyncio.to_thread(model_difference, self._start, checkpoint)
        except ValueError as error:
            raise CheckpointRefused(f"checkpoint {checkpoint}: {error}") from error
        if difference is not None:
            raise CheckpointRefused(
                f"checkpoint {checkpoint} has another architecture than {self._start}: {difference}"
            )
        # No request is in flight here. The prefix cache is reset: its entries belong to the old weights.
        self._loaded = None
        try:
            await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": checkpoint})
            forgot = await self._engine.reset_prefix_cache()
        except Exception as error:  # vLLM re-raises its workers' errors, of any type
            if self._engine.errored:
                raise  # the caller asks the next server
            raise CheckpointRefused(f"checkpoint {checkpoint} could not be loaded: {last_line(error)}") from error
        if not forgot:
            raise CheckpointRefused(f"checkpoint {checkpoint} was loaded, but vLLM did not reset its prefix cache")
        logger.info("serves %s", checkpoint)


def version_of(checkpoint: str) -> str:
    """Return a key for a checkpoint's files that changes when the weights are written again."""
    return f"{checkpoint} {[file.stat().st_mtime_ns for file in sorted(Path(checkpoint).glob('*.safetensors'))]}"


def engine_arguments(config: DictConfig, gpus: int) -> dict[str, Any]:
    """Return vLLM's command-line arguments, equal to those of the run's rollouts. `config` is the result of `for_verl`.

    `gpus` counts the server's own GPUs; 0 shares the training's. Raises ConfigError if no whole replicas fit.
    """
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    width = int(rollout.tensor_model_parallel_size)
    if gpus % width:
        raise ConfigError(
            f"{gpus} GPUs for frozen policies are no multiple of "
            f"actor_rollout_ref.rollout.tensor_model_parallel_size = {width}"
        )
    given: Any = OmegaConf.to_container(rollout.get("engine_kwargs") or OmegaConf.create(), resolve=True)
    own = {key: value for key, value in (given.get("vllm") or {}).items() if value is not None}
    compilation = {"cudagraph_mode": "FULL_AND_PIECEWISE", **(own.pop("compilation_config", None) or {})}
    if rollout.get("cudagraph_capture_sizes"):
        compilation["cudagraph_capture_sizes"] = list(rollout.cudagraph_capture_sizes)
    template: Any = OmegaConf.to_container(
        config.data.get("apply_chat_template_kwargs") or OmegaConf.create(), resolve=True
    )
    return {
        **{key: rollout.get(key) for key in SAME},
        "model": str(model.path),
        # In the server's own process, the engine always ends with the server.
        "distributed_executor_backend": ONE_PROCESS if width == 1 else "mp",
        "worker_extension_cls": VERL_EXTENSION,
        "trust_remote_code": bool(model.trust_remote_code),
        "tokenizer": str(model.tokenizer_path) if model.get("tokenizer_path") else None,
        "tensor_parallel_size": width,
        "data_parallel_size": max(1, gpus // width),
        "seed": int(rollout.seed),
        "override_generation_config": {
            **{key: rollout[key] for key in ("temperature", "top_k", "top_p")},
            "repetition_penalty": 1.0,
            "max_new_tokens": rollout.response_length,
        },
        "default_chat_template_kwargs": template or None,
        "compilation_config": compilation,
        **own,
    }


def engine_environment(config: DictConfig, device_env: Mapping[str, str]) -> dict[str, str]:
    """Return vLLM's environment variables, to be set before vLLM is imported."""
    determinism = {}
    if config.actor_rollout_ref.rollout.get("full_determinism"):
        seed = str(int(config.actor_rollout_ref.rollout.seed))
        determinism = {"VERL_FULL_DETERMINISM": "1", "VERL_SEED": seed, "VLLM_BATCH_INVARIANT": "1"}
    quiet = {"TOKENIZERS_PARALLELISM": "true", "VLLM_LOGGING_LEVEL": "WARN", "VLLM_HOST_IP": HOST}
    return {**quiet, **device_env, **determinism}


if __name__ == "__main__":
    sys.exit(main())

"""vLLM in the player's process, made as verl makes it for the run that the configuration is of: the same lengths,
types, kernels, limits and seeds, and the same extension of its workers.

What verl adds for sharing a GPU with training (sleep, weights through shared memory) is left out: here weights come
from a folder, into the engine that runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from omegaconf import DictConfig, OmegaConf

from agentevolver.coevolve.player.weights import Model, folder_of
from agentevolver.engine import EngineError, Generated
from agentevolver.errors import ConfigError
from agentevolver.rollout.policy import structured

logger = logging.getLogger(__name__)

VERL_EXTENSION = "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension"
# Keys of verl's section `rollout` that are vLLM's arguments of the same name.
_SAME = (
    *("dtype", "max_model_len", "max_num_seqs", "enable_chunked_prefill", "max_num_batched_tokens"),
    *("enable_prefix_caching", "logprobs_mode", "enforce_eager", "disable_log_stats", "quantization"),
    *("gpu_memory_utilization", "scheduling_policy"),
)
# Minutes for the largest models on a slow disk; an engine that takes longer hangs.
LOAD_TIMEOUT_S = 900.0
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


def engine_arguments(config: DictConfig, gpus: int = 1) -> dict[str, Any]:
    """Return vLLM's arguments, by their names on its command line.

    Args:
        config: of the run, as verl gets it (`config.checks.for_verl`).
        gpus: that the player has for itself; 0: one replica on the training's.

    Raises ConfigError where the GPUs cannot hold whole replicas of the policy.
    """
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    width = int(rollout.tensor_model_parallel_size)
    if gpus % width:
        raise ConfigError(
            f"coevolve.executor.gpus = {gpus} is no multiple of "
            f"actor_rollout_ref.rollout.tensor_model_parallel_size = {width}"
        )
    given = OmegaConf.to_container(rollout.get("engine_kwargs") or OmegaConf.create(), resolve=True)
    own = {key: value for key, value in (dict(given).get("vllm") or {}).items() if value is not None}  # type: ignore[arg-type]
    compilation = {"cudagraph_mode": "FULL_AND_PIECEWISE", **(own.pop("compilation_config", None) or {})}
    if rollout.get("cudagraph_capture_sizes"):
        compilation["cudagraph_capture_sizes"] = list(rollout.cudagraph_capture_sizes)
    generation = {"temperature": rollout.temperature, "top_k": rollout.top_k, "top_p": rollout.top_p}
    return {
        **{key: rollout.get(key) for key in _SAME},
        # One process less, and the engine ends with the player, however that ends.
        "distributed_executor_backend": ONE_PROCESS if width == 1 else "mp",
        "worker_extension_cls": VERL_EXTENSION,
        "trust_remote_code": bool(model.trust_remote_code),
        "tokenizer": str(model.tokenizer_path) if model.get("tokenizer_path") else None,
        "tensor_parallel_size": width,
        "data_parallel_size": max(1, gpus // width),
        "seed": int(rollout.seed),
        "override_generation_config": {
            **generation,
            "repetition_penalty": 1.0,
            "max_new_tokens": rollout.response_length,
        },
        "compilation_config": compilation,
        **own,
    }


def engine_environment(config: DictConfig, device_env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that vLLM has in the run's own workers; they must be set before it is imported.

    Args:
        config: of the run, as verl gets it.
        device_env: of the device.
    """
    determinism = {}
    if config.actor_rollout_ref.rollout.get("full_determinism"):
        seed = str(int(config.actor_rollout_ref.rollout.seed))
        determinism = {"VERL_FULL_DETERMINISM": "1", "VERL_SEED": seed, "VLLM_BATCH_INVARIANT": "1"}
    quiet = {"TOKENIZERS_PARALLELISM": "true", "VLLM_LOGGING_LEVEL": "WARN", "VLLM_HOST_IP": "127.0.0.1"}
    return {**quiet, **device_env, **determinism}


class VllmEngine:
    """vLLM's engine as the `Engine` of rollouts; says no log-probs, which nobody reads of a frozen policy.

    Args:
        llm: vLLM's `AsyncLLM`.
        model: of the weights that it was started with.
        max_model_len: tokens of a sequence.
        timeout_s: seconds that one call may take.
        seeded: whether requests keep their seeds, as in training.
        on_death: is called once when the engine is found dead.
    """

    def __init__(
        self,
        llm: Any,
        model: Model,
        *,
        max_model_len: int,
        timeout_s: float,
        seeded: bool = True,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._llm = llm
        self._model = model
        self._max_model_len = max_model_len
        self._timeout_s = timeout_s
        self._seeded = seeded
        self._on_death = on_death
        self._dead = False

    @property
    def dead(self) -> bool:
        """Whether the engine has ended, so that only a new process plays on."""
        if not self._dead and self._llm.errored:
            self._die()
        return self._dead

    def _die(self) -> None:
        self._dead = True
        self._on_death()

    def check(self, name: str) -> None:
        """Raise PlayerRefused for weights of another model; reads the disk."""
        self._model.check(folder_of(name))

    async def load(self, name: str) -> None:
        """Put other weights into the engine, which nobody uses meanwhile; raises EngineError.

        Nothing that the old weights computed stays.
        """
        folder = folder_of(name)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
                forgot = await self._llm.reset_prefix_cache()
        except TimeoutError as error:
            self._die()
            raise EngineError(f"{folder} was not loaded within {LOAD_TIMEOUT_S:g} s") from error
        except Exception as error:  # the boundary: vLLM passes on whatever its workers raised
            raise EngineError(f"{folder} could not be loaded: {self._said(error)}") from error
        if not forgot:
            raise EngineError(f"{folder} was loaded, but vLLM kept what the weights before it computed")
        logger.info("plays %s", folder)

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        """Sample a reply; raises EngineError."""
        room = self._max_model_len - len(prompt_ids)
        if room < 1:
            raise EngineError(f"a prompt of {len(prompt_ids)} tokens leaves no room in {self._max_model_len}")
        try:
            async with asyncio.timeout(self._timeout_s):
                ids = await self._sample(prompt_ids, sampling_params, room)
        except TimeoutError as error:
            raise EngineError(
                f"no reply within {self._timeout_s:.0f} s (actor_rollout_ref.rollout.step_timeout_s)"
            ) from error
        except EngineError:
            raise
        except Exception as error:  # the boundary: vLLM raises whatever its engine raised
            raise EngineError(self._said(error)) from error
        return Generated(ids, [0.0] * len(ids), 0, 0)

    async def _sample(self, prompt_ids: list[int], sampling_params: dict[str, Any], room: int) -> list[int]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        given = {name: value for name, value in sampling_params.items() if self._seeded or name != "seed"}
        given.pop("logprobs", None)
        given["max_tokens"] = max(1, min(given.get("max_tokens", room), room))
        if (structure := given.get("structured_outputs")) is not None:
            given["structured_outputs"] = structured(structure)
        sampling = SamplingParams(**given, output_kind=RequestOutputKind.FINAL_ONLY, detokenize=bool(given.get("stop")))
        final = None
        # vLLM wants an id of each call; the instance's would be the same in each turn.
        async for output in self._llm.generate(TokensPrompt(prompt_token_ids=prompt_ids), sampling, uuid4().hex):
            final = output
        if final is None or not final.outputs or not final.outputs[0].token_ids:
            raise EngineError("the engine returned no tokens")
        said = final.outputs[0]
        if said.finish_reason == "abort":
            raise EngineError("the engine gave the request up")
        return list(said.token_ids)

    def _said(self, error: BaseException) -> str:
        dead = " (the engine has ended)" if self.dead else ""
        return f"{type(error).__name__}: {str(error).splitlines()[-1] if str(error) else ''}{dead}"

    def close(self) -> None:
        """End the engine."""
        self._llm.shutdown()


async def start_engine(
    config: DictConfig, folder: Path, tokenizer: Any, *, gpus: int, timeout_s: float, seeded: bool,
    on_death: Callable[[], None],
) -> VllmEngine:  # fmt: skip
    """Start vLLM with the weights of a folder.

    Args:
        config: of the run, as verl gets it.
        folder: a Hugging Face folder.
        tokenizer: of the policy: no token outside of it is sampled.
        gpus: that the player has for itself; 0: one replica on the training's.
        timeout_s: seconds that one call may take.
        seeded: whether requests keep their seeds.
        on_death: is called once when the engine is found dead.

    Raises:
        ConfigError: vLLM does not take its arguments.
        PlayerRefused: the folder holds no weights.
    """
    model = Model(folder)
    llm = _made(engine_arguments(config, gpus) | {"model": str(folder)})
    await llm.collective_rpc("monkey_patch_model", kwargs={"vocab_size": len(tokenizer), "banned_token_ids": []})
    length = int(config.actor_rollout_ref.rollout.max_model_len)
    return VllmEngine(llm, model, max_model_len=length, timeout_s=timeout_s, seeded=seeded, on_death=on_death)


def _made(arguments: dict[str, Any]) -> Any:
    """Return vLLM's engine. The arguments go through its own command line, as verl's do."""
    from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm", exit_on_error=False))
    try:
        given = parser.parse_args(build_cli_args_from_config(arguments))
    except SystemExit as error:
        raise ConfigError(
            "actor_rollout_ref.rollout.engine_kwargs.vllm: vLLM does not take these arguments (see the lines above)"
        ) from error
    engine = AsyncEngineArgs.from_cli_args(given)
    engine.use_tqdm_on_load = False  # its bar would stand among the lines of the command that plays
    return AsyncLLM.from_engine_args(engine)


def set_environment(variables: Mapping[str, str]) -> None:
    """Set what is not set already, for this process and those that it starts."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)

"""vLLM behind the player's interface: its arguments are the run's, and every failure of it is one kind of error."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentevolver.coevolve.player.engine import (
    ONE_PROCESS,
    VllmEngine,
    engine_arguments,
    engine_environment,
)
from agentevolver.coevolve.player.weights import identify
from agentevolver.config.checks import for_verl, load
from agentevolver.engine import EngineError
from agentevolver.errors import ConfigError
from tests.agentevolver.coevolve.models import write_model


def arguments(*overrides: str, gpus: int = 1) -> dict[str, Any]:
    return engine_arguments(for_verl(load(None, ["env_service.env_type=calc", *overrides]).config), gpus)


def test_on_a_cpu_the_arguments_are_those_of_the_runs_own_workers():
    made = arguments("device=cpu", "data.seed=7", "actor_rollout_ref.rollout.max_num_seqs=48")
    expected = {
        "dtype": "float32",
        "max_model_len": 576,
        "max_num_seqs": 48,
        "enable_chunked_prefill": False,
        "enforce_eager": True,
        "distributed_executor_backend": ONE_PROCESS,
        "worker_extension_cls": "agentevolver.verl_plugin.vllm_worker.CpuWorkerExtension",
        "tensor_parallel_size": 1,
        "data_parallel_size": 1,
    }
    assert {key: made[key] for key in expected} == expected
    assert made["override_generation_config"]["max_new_tokens"] == 32


def test_on_gpus_whole_replicas_share_them():
    own = ("device=cuda", "trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    made = arguments(*own, gpus=4)
    assert (made["tensor_parallel_size"], made["data_parallel_size"]) == (2, 2)
    assert made["distributed_executor_backend"] == "mp" and made["compilation_config"]["cudagraph_mode"]
    with pytest.raises(ConfigError, match=r"coevolve.executor.gpus = 3 is no multiple of .*tensor_model_parallel_size"):
        arguments(*own, gpus=3)


def test_on_the_trainings_gpus_it_is_one_replica():
    one = ("device=cuda", "trainer.n_gpus_per_node=4")
    for width in (1, 2):
        made = arguments(*one, f"actor_rollout_ref.rollout.tensor_model_parallel_size={width}", gpus=0)
        assert (made["tensor_parallel_size"], made["data_parallel_size"]) == (width, 1)


def test_the_variables_are_the_devices_and_those_of_determinism_where_it_is_asked_for():
    cpu = load(None, ["device=cpu", "env_service.env_type=calc"])
    made = engine_environment(for_verl(cpu.config), cpu.settings.device_env)
    assert made["VERL_PLATFORM"] == "cpu" and made["VLLM_HOST_IP"] == "127.0.0.1"
    assert "VLLM_BATCH_INVARIANT" not in made
    asked = ["device=cuda", "trainer.n_gpus_per_node=1", "trainer.deterministic=true", "env_service.env_type=calc"]
    gpu = load(None, asked)
    assert engine_environment(for_verl(gpu.config), {})["VLLM_BATCH_INVARIANT"] == "1"


class Said:
    def __init__(self, ids: list[int], reason: str) -> None:
        self.outputs = [self] if ids else []
        self.token_ids, self.finish_reason = ids, reason


class ToldLLM:
    """An `AsyncLLM` that answers what it is told, and notes what it was asked."""

    def __init__(self, *told: Any) -> None:
        self.told = list(told)
        self.errored = False
        self.forgets = True
        self.asked: list[Any] = []
        self.ids: list[str] = []

    async def generate(self, prompt, sampling, request_id):
        self.asked.append((prompt["prompt_token_ids"], sampling))
        self.ids.append(request_id)
        said = self.told.pop(0)
        if isinstance(said, Exception):
            self.errored = "dead" in str(said)
            raise said
        await asyncio.sleep(said[2] if len(said) > 2 else 0)
        yield Said(said[0], said[1])

    async def collective_rpc(self, method, kwargs):
        self.asked.append((method, kwargs))
        if self.told and isinstance(self.told[0], Exception):
            raise self.told.pop(0)

    async def reset_prefix_cache(self):
        self.asked.append("forget")
        return self.forgets


def made(llm: ToldLLM, **options: Any) -> VllmEngine:
    return VllmEngine(llm, None, max_model_len=10, timeout_s=options.pop("timeout_s", 5.0), **options)


async def test_a_reply_is_the_ids_with_as_many_log_probs_and_keeps_its_seed():
    llm = ToldLLM(([5, 6, 1], "stop"), ([5], "length"))
    engine = made(llm)
    generated = await engine.generate("i", [1, 2, 3], {"temperature": 1.0, "seed": 9, "logprobs": True})
    assert (generated.ids, len(generated.log_probs)) == ([5, 6, 1], 3)
    await engine.generate("i", [1, 2, 3], {"max_tokens": 99})
    (_, sampling), (_, unbounded) = llm.asked
    assert (sampling.seed, sampling.logprobs, sampling.max_tokens, unbounded.max_tokens) == (9, None, 7, 7)
    assert llm.ids[0] != llm.ids[1], "vLLM refuses an id that is in use"


async def test_seeds_are_left_out_where_training_leaves_them_out():
    llm = ToldLLM(([5], "stop"))
    await made(llm, seeded=False).generate("i", [1], {"seed": 9})
    assert llm.asked[0][1].seed is None


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (([], "stop"), "no tokens"),
        (([5], "abort"), "gave the request up"),
        (([5], "stop", 1.0), "no reply within"),
        (RuntimeError("CUDA\nout of memory"), "RuntimeError: out of memory"),
    ],
)
async def test_every_failure_of_vllm_is_an_engine_error(told, why):
    engine = made(ToldLLM(told), timeout_s=0.05)
    with pytest.raises(EngineError, match=why):
        await engine.generate("i", [1], {})
    assert not engine.dead


async def test_a_prompt_without_room_is_not_sent():
    llm = ToldLLM()
    with pytest.raises(EngineError, match="leaves no room"):
        await made(llm).generate("i", list(range(10)), {})
    assert not llm.asked


async def test_a_dead_engine_says_so_once():
    deaths: list[int] = []
    engine = made(ToldLLM(RuntimeError("dead")), on_death=lambda: deaths.append(1))
    with pytest.raises(EngineError, match="the engine has ended"):
        await engine.generate("i", [1], {})
    assert engine.dead and engine.dead and deaths == [1]


async def test_weights_are_loaded_and_what_the_old_ones_computed_is_forgotten(tmp_path: Path):
    name = identify(write_model(tmp_path / "next"))
    llm = ToldLLM()
    await made(llm).load(name)
    assert llm.asked == [("reload_weights", {"weights_path": str(tmp_path / "next")}), "forget"]
    llm.forgets = False
    with pytest.raises(EngineError, match="kept what the weights before it computed"):
        await made(llm).load(name)
    with pytest.raises(EngineError, match="could not be loaded: KeyError"):
        await made(ToldLLM(KeyError("lm_head"))).load(name)


async def test_loading_that_hangs_is_the_engines_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentevolver.coevolve.player.engine.LOAD_TIMEOUT_S", 0.05)
    llm = ToldLLM()

    async def hang(method: str, kwargs: Any) -> None:
        await asyncio.sleep(60)

    llm.collective_rpc = hang  # type: ignore[method-assign]
    engine = made(llm)
    with pytest.raises(EngineError, match="not loaded within"):
        await engine.load(identify(write_model(tmp_path / "next")))
    assert engine.dead, "nobody knows what it plays with"

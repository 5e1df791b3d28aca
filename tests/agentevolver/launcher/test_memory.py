"""The estimate of a GPU's memory: against what was measured, and which configurations it refuses."""

import re
from functools import cache

import pytest
from omegaconf import OmegaConf

from agentevolver.config.load import compose_defaults
from agentevolver.config.model import DecoderSize
from agentevolver.launcher.memory import GIB, demand

HALF = DecoderSize(896, 4864, 24, 14, 2, 151_936, tied=True)
ONE_AND_A_HALF = DecoderSize(1536, 8960, 28, 12, 2, 151_936, tied=True)
SEVEN = DecoderSize(3584, 18944, 28, 28, 4, 151_936, tied=False)
H100 = 81_559 << 20


@cache
def defaults():
    return OmegaConf.masked_copy(compose_defaults("cuda"), ["trainer", "algorithm", "actor_rollout_ref"])


def config(*overrides, gpus=1):
    sizes = ("actor.ppo_max_token_len_per_gpu=16384", "rollout.max_model_len=2560")
    written = [*(f"actor_rollout_ref.{size}" for size in sizes), f"trainer.n_gpus_per_node={gpus}", *overrides]
    return OmegaConf.merge(defaults(), OmegaConf.from_dotlist(written))


@pytest.mark.parametrize(("model", "millions"), [(HALF, 494.0), (ONE_AND_A_HALF, 1543.7), (SEVEN, 7615.6)])
def test_parameters_are_those_of_qwen2(model, millions):
    """As counted on the meta device by transformers 5.10; biases and norms are left out here."""
    assert model.parameters / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "checkpointing", "measured_gib"),
    [(HALF, True, 14.5), (HALF, False, 34.9), (ONE_AND_A_HALF, True, 17.2), (ONE_AND_A_HALF, False, 60.1)],
)
def test_activations_are_those_that_were_measured_on_an_h100(model, checkpointing, measured_gib):
    """8 x 2,048 tokens forwards and backwards in bf16, without optimiser and FSDP (torch.cuda.max_memory_allocated):
    the peak is where the logits have their gradient and the layers have none yet."""
    overrides = ("actor.fsdp_config.model_dtype=bf16", f"model.enable_gradient_checkpointing={checkpointing}")
    parts = demand(config(*(f"actor_rollout_ref.{item}" for item in overrides)), model).learning
    estimate = sum(parts[name] for name in ("parameters", "activations", "logits or a layer"))
    assert estimate / GIB == pytest.approx(measured_gib, rel=0.1)


def test_states_are_exact_and_shared_by_the_gpus():
    parts = demand(config(), SEVEN).learning
    assert parts["parameters"] == parts["gradients"] == parts["optimiser"] / 2 == 4 * SEVEN.parameters
    eighth = demand(config(gpus=8), SEVEN).learning
    assert eighth["optimiser"] == parts["optimiser"] / 8 and eighth["logits or a layer"] == parts["logits or a layer"]
    assert (
        demand(config("actor_rollout_ref.actor.fsdp_config.fsdp_size=2", gpus=8), SEVEN).learning["optimiser"]
        == parts["optimiser"] / 2
    )
    lora = demand(config("actor_rollout_ref.model.lora_rank=32"), SEVEN).learning
    assert (
        lora["parameters"] == parts["parameters"]
        and lora["gradients"] == 4 * SEVEN.lora_parameters(32) < 0.02 * parts["gradients"]
    )


def test_what_is_offloaded_is_not_held_beside_vllm_and_is_there_to_learn():
    held, offloaded = (
        demand(config(*o), ONE_AND_A_HALF)
        for o in ([], [f"actor_rollout_ref.actor.fsdp_config.{k}_offload=true" for k in ("param", "optimizer")])
    )
    assert held.held - offloaded.held == 12 * ONE_AND_A_HALF.parameters
    assert held.learning == offloaded.learning
    policy = demand(config("actor_rollout_ref.actor.fsdp_config.offload_policy=true"), SEVEN)
    assert policy.learning["optimiser"] == 0 and policy.problem(H100) is None


@pytest.mark.parametrize(
    ("model", "overrides", "gpus", "says"),
    [
        (HALF, [], 1, None),
        (ONE_AND_A_HALF, ["gpu_memory_utilization=0.5"], 1, None),
        (SEVEN, [], 1, r"states need 1\d\d\.\d GiB of a GPU's 79\.6 while it learns: more GPUs"),
        (SEVEN, [], 8, None),
        (SEVEN, ["gpu_memory_utilization=0.15"], 8, r"vLLM needs 15\.\d GiB and .*=0\.15 gives it 11\.9: raise it"),
        (
            ONE_AND_A_HALF,
            ["gpu_memory_utilization=0.9"],
            1,
            r"=0\.9 takes 71\.7 of 79\.6 GiB while the trainer holds 19\.\d: lower it to 0\.7",
        ),
        (ONE_AND_A_HALF, ["free_cache_engine=false", "gpu_memory_utilization=0.7"], 1, r"states need"),
    ],
)
def test_what_cannot_fit_is_refused_and_what_fits_is_not(model, overrides, gpus, says):
    problem = demand(config(*(f"actor_rollout_ref.rollout.{item}" for item in overrides), gpus=gpus), model).problem(
        H100
    )
    if says is None:
        assert problem is None
    else:
        assert problem is not None and re.search(says, problem), problem

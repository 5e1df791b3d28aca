"""The estimate of a GPU's memory: against what was measured, and which configurations it refuses."""

import re
from functools import cache

import pytest
from omegaconf import OmegaConf

from agentevolver.config.load import compose_defaults
from agentevolver.config.model import DecoderSize, ram_bytes
from agentevolver.launcher.memory import BUCKET, GIB, check_host, demand
from agentevolver.utils.errors import LaunchError

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


CPU = ("trainer.device=cpu", f"{BUCKET}=4096", "actor_rollout_ref.rollout.dtype=float32")
CONTENTS = "actor_rollout_ref.actor.checkpoint.save_contents"


@pytest.mark.parametrize(
    ("model", "overrides", "room", "told"),
    [
        (HALF, [], {}, "3 of 5.5 GiB, 100.0 GiB are free"),
        (HALF, ["trainer.save_freq=-1"], {"disk": 0}, None),
        (HALF, ["trainer.total_training_steps=4"], {}, "2 of 5.5 GiB"),
        (HALF, ["trainer.max_actor_ckpt_to_keep=null", "trainer.total_training_steps=20"], {}, "10 of 5.5 GiB"),
        (HALF, ["trainer.max_actor_ckpt_to_keep=null", "trainer.total_training_steps=200"], {}, r"take 552\.\d GiB"),
        (HALF, [f"{CONTENTS}=[model,hf_model]"], {}, "3 of 3.7 GiB"),
        (HALF, [f"{CONTENTS}=[]"], {"disk": 0}, None),
        (HALF, ["actor_rollout_ref.model.lora_rank=32"], {}, "3 of 0.2 GiB"),
        (HALF, ["actor_rollout_ref.actor.fsdp_config.model_dtype=bf16"], {}, "3 of 2.8 GiB"),
        (HALF, [], {"disk": 12}, r"take 16\.6 GiB, and 12\.0 are free"),
        (HALF, [], {"disk": 12, "saved": 2}, "3 of 5.5 GiB"),
        (HALF, [], {"disk": 5, "saved": 9}, r"take 5\.5 GiB, and 5\.0 are free"),
        (SEVEN, [], {}, r"take 255\.\d GiB"),
        (HALF, CPU, {"memory": 10}, "3 of 5.5 GiB"),
        (HALF, CPU, {"memory": 9}, r"take 9\.2 GiB of this machine's 9\.0"),
        (SEVEN, [*CPU, "actor_rollout_ref.model.lora_rank=8"], {"memory": 60}, "3 of 0.2 GiB"),
        (HALF, [*CPU, f"{BUCKET}=519"], {"memory": 10}, r"=519, and the model's largest tensor takes 0\.5 GiB"),
        (HALF, [f"{BUCKET}=519"], {"memory": 10}, "3 of 5.5 GiB"),
    ],
)
def test_what_a_machine_cannot_hold_is_refused_before_a_start(model, overrides, room, told):
    sizes = {"memory": 100 * GIB, "disk": 100 * GIB, "saved": 0}
    sizes |= {name: value if name == "saved" else value * GIB for name, value in room.items()}
    saving = ("default_local_dir=there", "save_freq=2", "max_actor_ckpt_to_keep=3")
    asked = config(*(f"trainer.{item}" for item in saving), *overrides)
    if told is None or told[0].isdecimal():
        lines = check_host(asked, model, **sizes)
        assert told in lines[0] if told else lines == []
    else:
        with pytest.raises(LaunchError, match=told):
            check_host(asked, model, **sizes)


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize("text", ["1048576\n", "max\n", "9223372036854771712\n", ""])
def test_the_memory_is_the_containers_if_that_is_less(tmp_path, file, text):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert ram_bytes(tmp_path) == (1 << 20 if text == "1048576\n" else ram_bytes(tmp_path / "none"))

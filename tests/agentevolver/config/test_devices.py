"""What a run takes off the machine: the device group, the number of GPUs, the attention. The machine is played by an
empty folder."""

import json
import os
import struct
from importlib import metadata
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from agentevolver.config import devices
from agentevolver.config.checks import for_verl, load
from agentevolver.utils.errors import ConfigError
from tests.tiny_model import tiny_model_path

EXAMPLES = Path(__file__).parents[3] / "examples"
BASIC = EXAMPLES / "basic.yaml"
SEED_POLICY = Path(devices.__file__).parents[1] / "recipes" / "offline" / "seed" / "seed_policy_files"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a machine of so many GPUs, or none; no nvidia-smi, unless it is asked for."""

    def make(gpus, visible=None, smi=False):
        files = [tmp_path / f"nvidia{index}" for index in range(gpus)]
        monkeypatch.setattr(devices, "_device_files", lambda: files)
        monkeypatch.setattr(
            devices.shutil, "which", lambda name: "/usr/bin/nvidia-smi" if smi and name == "nvidia-smi" else None
        )
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return make


@pytest.mark.parametrize(
    ("gpus", "visible", "seen"),
    [
        (8, None, 8),
        (2, "0,5,1", 1),
        (2, "GPU-1f2e,MIG-7c", 2),
        (2, "1,NoDevFiles", 1),
    ],
)
def test_the_gpus_that_cuda_would_see_are_counted(machine, gpus, visible, seen):
    machine(gpus, visible)
    assert devices.visible_gpus() == seen


@pytest.mark.parametrize(
    ("gpus", "visible", "smi", "there"),
    [
        (1, None, False, True),
        (0, None, True, True),
        (0, None, False, False),
        (4, "", True, False),
        (4, "NoDevFiles", True, False),
        (4, " ", True, False),
        (4, "none", True, False),
        (4, "void", True, False),
        (4, "-1,0", True, False),
        (4, "1", True, True),
        (4, "GPU-1f2e", True, True),
    ],
)
def test_a_driver_is_looked_for_and_may_be_hidden(machine, gpus, visible, smi, there):
    machine(gpus, visible, smi)
    assert devices.has_gpu() is there


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("gpus", "example", "overrides", "device"),
    [
        (0, "basic.yaml", [], "cpu"),
        (8, "pocket_long.yaml", [], "cuda"),
        (8, "basic.yaml", ["actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct"], "cuda"),
        (8, "basic.yaml", ["device=cpu"], "cpu"),
        (0, "basic.yaml", ["device=cuda"], "cuda"),
    ],
)
def test_auto_takes_the_seed_policy_where_no_model_is_named_and_it_knows_the_environment(
    machine, gpus, example, overrides, device
):
    machine(gpus)
    assert load(EXAMPLES / example, overrides).device == device


def test_the_attention_needs_no_package_and_takes_flash_attn_where_it_is(monkeypatch):
    def attention(*overrides):
        config = load(BASIC, ["device=cuda", "actor_rollout_ref.model.path=x", *overrides]).config
        return config.actor_rollout_ref.model.override_config.attn_implementation

    found = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.8.3" if name == "flash-attn" else found(name))
    assert attention() == "flash_attention_2"
    assert attention("actor_rollout_ref.model.override_config.attn_implementation=sdpa") == "sdpa"
    monkeypatch.setattr(
        metadata, "version", lambda name: found("flash-attn-is-not-here" if name == "flash-attn" else name)
    )
    assert attention() == "torch_varlen"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", r"ref.actor.ulysses_sequence_parallel_size = 2:"),
    ],
)
def test_what_torchs_kernel_cannot_do_is_refused_before_the_start(override, message):
    chosen = "actor_rollout_ref.model.override_config.attn_implementation="
    model = ["device=cuda", "actor_rollout_ref.model.path=x"]
    with pytest.raises(ConfigError, match=message):
        load(BASIC, [*model, f"{chosen}torch_varlen", override])
    load(BASIC, [*model, f"{chosen}flash_attention_2", override])


@pytest.mark.thorough
def test_what_the_groups_load_in_each_worker_registers_the_attention_and_the_log_probs(monkeypatch):
    from transformers import AttentionInterface
    from verl.utils import torch_functional
    from verl.utils.import_utils import import_external_libs

    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", None)
    monkeypatch.delitem(__import__("sys").modules, "agentevolver.trainer.verl_plugin.cuda", raising=False)
    import_external_libs(load(BASIC, ["device=cuda"]).config.actor_rollout_ref.model.external_lib)
    assert torch_functional.logprobs_from_logits_v2.__module__ == "agentevolver.trainer.verl_plugin.log_probs"
    assert "torch_varlen" in AttentionInterface().valid_keys()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["device=cpu", "actor_rollout_ref.rollout.enable_chunked_prefill=true"], "prompts are prefilled whole"),
        (
            ["device=cpu", "actor_rollout_ref.rollout.full_determinism=true"],
            "has an effect only with device_name = cuda",
        ),
    ],
)
def test_what_would_end_the_engine_or_do_nothing_on_a_cpu_is_refused(overrides, said):
    with pytest.raises(ConfigError, match=said):
        load(BASIC, overrides)


@pytest.mark.thorough
@pytest.mark.parametrize(("device", "asked"), [("cuda", True), ("cpu", False)])
def test_a_run_that_is_to_be_deterministic_asks_the_kernels_of_a_gpu_for_it(device, asked):
    model = f"actor_rollout_ref.model.path={SEED_POLICY}"
    made = for_verl(load(BASIC, [f"device={device}", model, "trainer.deterministic=true"]).config).actor_rollout_ref
    assert (
        made.rollout.full_determinism,
        made.actor.fsdp_config.full_determinism,
        made.ref.fsdp_config.full_determinism,
    ) == (asked,) * 3
    usual = for_verl(load(BASIC, ["device=cuda", model]).config)
    assert not usual.actor_rollout_ref.rollout.full_determinism and not usual.agentevolver.trainer.deterministic


@pytest.mark.thorough
@pytest.mark.parametrize("asked", ["trainer.deterministic=true", "actor_rollout_ref.rollout.full_determinism=true"])
@pytest.mark.parametrize("form", ["none", "text"])
def test_a_deterministic_vllm_times_no_kernels(monkeypatch, asked, form):
    from verl.utils.config import omega_conf_to_dataclass
    from vllm.config import compilation
    from vllm.platforms.interface import UnspecifiedPlatform

    place = "actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config"
    own = {
        "none": [],
        "text": [f"""{place}='{{"mode": 3, "inductor_compile_config": {{"max_autotune": false}}}}'"""],
    }[form]
    config = load(BASIC, ["device=cuda", f"actor_rollout_ref.model.path={SEED_POLICY}", asked, *own]).config
    rollout = omega_conf_to_dataclass(for_verl(config).actor_rollout_ref.rollout)
    with pytest.raises(ConfigError, match="compilation_config: must be a section"):
        for_verl(
            load(BASIC, ["device=cuda", f"actor_rollout_ref.model.path={SEED_POLICY}", asked, f"{place}=3"]).config
        )
    given = json.loads(json.dumps(rollout.engine_kwargs["vllm"]["compilation_config"]))  # as verl hands it to vLLM
    expected = {} if form == "none" else {"max_autotune": False}
    assert given["inductor_compile_config"] == {"combo_kernels": False, "benchmark_combo_kernel": False, **expected}
    assert given.get("mode") == (None if form == "none" else 3)

    # Of its own accord vLLM has them wherever it does not run on a CPU.
    monkeypatch.setattr(compilation, "current_platform", UnspecifiedPlatform())
    assert compilation.CompilationConfig().inductor_compile_config["benchmark_combo_kernel"]
    made = compilation.CompilationConfig(inductor_compile_config=given["inductor_compile_config"])
    assert not made.inductor_compile_config["combo_kernels"]
    assert not made.inductor_compile_config["benchmark_combo_kernel"]


@pytest.mark.parametrize(("device", "least"), [("cpu", 16), ("cuda", 2048)])
def test_the_buckets_of_a_weight_update_hold_the_models_largest_tensor(tmp_path, device, least):
    key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
    # 3 GiB in fp32: a header suffices, the tensor is not read.
    size = 2 * (3 << 18) * 1024
    embed, norm = {"shape": [3 << 18, 1024], "data_offsets": [0, size]}, {"shape": [], "data_offsets": [size, size + 2]}
    header = json.dumps({"__metadata__": {}, "embed": embed, "norm": norm}).encode()

    def bucket(model, *overrides):
        path = f"actor_rollout_ref.model.path={model}"
        return OmegaConf.select(load(BASIC, [f"device={device}", path, *overrides]).config, key)

    shard = tmp_path / "model-00001-of-00001.safetensors"
    shard.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(shard, 8 + len(header) + size + 2)
    assert bucket(tmp_path) == 3072 and bucket(tmp_path, f"{key}=7") == 7
    assert bucket(tiny_model_path()) == least and bucket("no/such-model") == 2048
    shard.write_bytes(struct.pack("<Q", 1 << 60))
    assert bucket(tmp_path) == 2048


@pytest.mark.parametrize(("flag", "bf16"), [("avx512_bf16", True), ("amx_bf16", True), ("avx512f", False)])
def test_a_large_model_computes_in_bf16_where_the_cpu_does(tmp_path, monkeypatch, flag, bf16):
    monkeypatch.setattr(devices, "CPUINFO", tmp_path / "cpuinfo")
    assert {*devices.cpu_precision(494_000_000).values()} == {"fp32", "float32"}
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flag} sse\n")
    assert {*devices.cpu_precision(494_000_000).values()} == ({"bf16", "bfloat16"} if bf16 else {"fp32", "float32"})
    assert {*devices.cpu_precision(135_000_000).values()} == {"fp32", "float32"}, "its log-probs are too far apart"
    # Every key exists.
    load(BASIC, ["device=cpu", *(f"{key}={value}" for key, value in devices.cpu_precision(494_000_000).items())])

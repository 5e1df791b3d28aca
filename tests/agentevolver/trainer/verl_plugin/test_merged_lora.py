"""Adapters on their way to vLLM on a CPU: merged into the weights exactly, and out of them again."""

import copy

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, Qwen2Config

from agentevolver.trainer.verl_plugin.engine import CpuEngine
from agentevolver.trainer.verl_plugin.vllm_worker import CpuWorkerExtension


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_weights_are_sent_merged_and_in_full_precision_and_the_policy_keeps_its_own(one_rank):
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    base = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    policy = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    expected = copy.deepcopy(policy).merge_and_unload().state_dict()
    for layer in policy.base_model.model.model.layers:
        fully_shard(layer, mesh=one_rank)
    fully_shard(policy, mesh=one_rank)
    own = {name: weight.full_tensor().clone() for name, weight in policy.state_dict().items()}

    engine = CpuEngine.__new__(CpuEngine)
    engine.module = policy
    sent = dict(engine._merged_lora_per_tensor_param())

    assert set(sent) == set(expected)
    for name, weight in expected.items():
        torch.testing.assert_close(sent[name], weight, rtol=1e-6, atol=1e-6)
    assert (
        sent["model.layers.1.mlp.up_proj.weight"] - own["base_model.model.model.layers.1.mlp.up_proj.base_layer.weight"]
    ).abs().max() > 0.1
    for name, weight in policy.state_dict().items():
        assert torch.equal(weight.full_tensor(), own[name]), f"{name} was left merged"


def test_adapters_that_come_apart_are_refused_with_the_key_that_merges_them():
    with pytest.raises(ValueError, match=r"set actor_rollout_ref\.model\.lora\.merge to true"):
        CpuWorkerExtension.update_weights_from_ipc(object(), peft_config={"r": 8}, base_sync_done=True)

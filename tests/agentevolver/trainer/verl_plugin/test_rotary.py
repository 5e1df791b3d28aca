import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Qwen2Config
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from agentevolver.trainer.verl_plugin.resharding import ReshardingEngine
from agentevolver.trainer.verl_plugin.rotary import restore_rotary

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 8192,
}
CONFIGS = {
    "qwen2": Qwen2Config(**SIZES, rope_theta=1e6),
    # A frequency for each type of layer.
    "gemma3": Gemma3TextConfig(**SIZES),
}


def made(name):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32)


def frequencies(model):
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")}


@pytest.mark.parametrize("name", CONFIGS)
def test_they_are_what_they_were_before_the_cast(name):
    exact = {key: value.clone() for key, value in frequencies(made(name)).items()}
    model = made(name).to(torch.bfloat16)
    assert exact and all(value.dtype == torch.bfloat16 for value in frequencies(model).values())
    saved = set(model.state_dict())
    assert restore_rotary(model) == 1
    restored = frequencies(model)
    assert restored.keys() == exact.keys()
    assert all(torch.equal(restored[key], value) for key, value in exact.items())
    assert set(model.state_dict()) == saved and all(one.dtype == torch.bfloat16 for one in model.parameters())
    assert restore_rotary(model) == 0


def test_the_engine_that_is_registered_restores_them(monkeypatch):
    monkeypatch.setattr(FSDPEngine, "_build_module", lambda self: made("qwen2").to(torch.bfloat16))
    built = ReshardingEngine._build_module(object.__new__(ReshardingEngine))
    assert {one.dtype for one in frequencies(built).values()} == {torch.float32}
    assert {one.dtype for one in built.parameters()} == {torch.bfloat16}

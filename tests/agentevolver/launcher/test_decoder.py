"""A decoder's size, by hand."""

import pytest

from agentevolver.launcher.memory import Decoder

TWO_LAYERS = Decoder(hidden=8, intermediate=16, layers=2, heads=4, kv_heads=2, vocabulary=100, tied=False)


def test_parameters_and_flops_are_those_of_the_matrices():
    layer = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16  # q, k and v, o, and the three of the MLP
    assert TWO_LAYERS.layer_parameters == layer
    assert TWO_LAYERS.parameters == 2 * layer + 2 * 100 * 8
    assert TWO_LAYERS.matmul_parameters == 2 * layer + 100 * 8
    # Each token meets 5 others on average: 2 x 8 for the scores and 2 x 8 for the values, in both layers.
    assert TWO_LAYERS.forward_flops(tokens=30, length=10) == 30 * (2 * TWO_LAYERS.matmul_parameters + 2 * 5 * (16 + 16))


def test_adapters_and_cache():
    ins_and_outs = (8 + 8) + 2 * (8 + 4) + (8 + 8) + 3 * (8 + 16)
    assert TWO_LAYERS.lora_parameters(rank=3) == 2 * 3 * ins_and_outs
    assert TWO_LAYERS.kv_bytes() == 2 * 2 * 2 * 2 * 2


@pytest.mark.parametrize("rank", [4, 16])
def test_adapters_are_as_many_as_peft_makes(rank):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    model = get_peft_model(
        AutoModelForCausalLM.from_config(config), LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == TWO_LAYERS.lora_parameters(rank)

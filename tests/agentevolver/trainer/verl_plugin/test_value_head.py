import sys
import types

import pytest
from transformers import AutoModelForCausalLM, Qwen2Config
from verl.models.transformers import monkey_patch

from agentevolver.trainer.verl_plugin.value_head import leave_trl_alone


def test_verl_builds_a_model_whatever_trl_is_installed(monkeypatch):
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    model = AutoModelForCausalLM.from_config(Qwen2Config(vocab_size=10, **sizes))
    for name in ("trl", "trl.experimental", "trl.experimental.ppo"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(monkey_patch, "is_trl_available", lambda: True)
    with pytest.raises(ImportError, match="AutoModelForCausalLMWithValueHead"):
        monkey_patch.apply_monkey_patch(model, use_remove_padding=False)
    leave_trl_alone()
    monkey_patch.apply_monkey_patch(model, use_remove_padding=False)

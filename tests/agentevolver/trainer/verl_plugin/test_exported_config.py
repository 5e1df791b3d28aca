import json

from transformers import AutoConfig, AutoModelForCausalLM

from agentevolver.trainer.verl_plugin.resharding import leave_attention_open
from tests.tiny_model import tiny_model_path


def test_a_saved_configuration_names_no_attention(tmp_path):
    config = AutoConfig.from_pretrained(tiny_model_path())
    config.update({"attn_implementation": "torch_varlen"})
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    before = json.loads(path.read_text())
    assert before["attn_implementation"] == "torch_varlen"
    leave_attention_open(path)
    assert json.loads(path.read_text()) == {key: value for key, value in before.items() if key != "attn_implementation"}
    assert AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).config._attn_implementation in (
        "sdpa",
        "eager",
    )

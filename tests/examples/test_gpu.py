"""examples/gpu.yaml: its sizes hold what PocketWorld says to a Qwen2.5, its head's commands are refused by nobody, verl
accepts it."""

import json
from pathlib import Path

import pytest

from agentevolver.config import devices
from agentevolver.config.checks import for_verl, load
from agentevolver.config.openings import load_measured
from agentevolver.utils.errors import ConfigError
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tests.replays import reference
from tests.real_tokenizers import build_real

SEVEN = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "max_position_embeddings": 32_768,
}
GPU = Path(__file__).parents[2] / "examples" / "gpu.yaml"


@pytest.mark.thorough
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_it_takes_the_gpus_that_are_there_and_verl_accepts_it(gpus, monkeypatch):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    monkeypatch.setattr(devices, "visible_gpus", lambda: gpus)
    resolved = load(GPU, ["device=cuda"])
    assert resolved.settings.sizes.n_gpus_per_node == resolved.ray.num_gpus == gpus
    config = for_verl(resolved.config)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))


def test_what_does_not_divide_the_rollouts_is_refused(monkeypatch):
    monkeypatch.setattr(devices, "visible_gpus", lambda: 3)
    with pytest.raises(ConfigError, match="= 256 must be a multiple of the 3 GPUs"):
        load(GPU, ["device=cuda"])


@pytest.mark.thorough
def test_the_derived_sizes_hold_the_tasks_in_the_policys_own_tokens(tmp_path):
    tokenizer = build_real("qwen2_5", "qwen")
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SEVEN))
    (tmp_path / "model.safetensors").touch()
    resolved = load_measured(GPU, ["device=cuda", f"actor_rollout_ref.model.path={tmp_path}"])
    sizes, rollout, params = (
        resolved.settings.sizes,
        resolved.settings.rollout,
        resolved.settings.env_service.env_params,
    )
    assert params["verbose"] is True
    assert any(f"max_prompt_length={sizes.max_prompt_length}" in line for line in resolved.derived)

    def tokens(messages):
        return len(tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)["input_ids"])

    openings, answers, calls, whole = [], [], [], []
    for task_id in PocketEnv.get_query_list("dev", {"n": 48}):
        env = PocketEnv(task_id, "i", params)
        messages = env.get_init_state()["state"]
        openings.append(tokens(messages))
        solution = reference(task_id, "compact")
        calls.append(len(solution) + params["slack"])
        for text in solution:
            said = env.step({"role": "assistant", "content": text})["state"]
            answers.append(tokens(said))
            messages += [{"role": "assistant", "content": text}, *said]
        assert env.evaluate() == 1.0
        whole.append(tokens(messages))
    assert openings[0] > 200, "the rules in full sentences"
    assert (
        max(openings) <= sizes.max_prompt_length
        and max(answers) <= rollout.max_env_len
        and max(calls) <= rollout.max_steps
    )
    assert max(whole) - min(openings) <= sizes.max_response_length / 4, "room for a policy that thinks before it calls"

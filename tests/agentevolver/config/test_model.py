import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentevolver.config.checks import load
from agentevolver.config.model import CONTEXT, LENGTHS, PROMPT, REPLY, lengths_of, read_model
from agentevolver.utils.errors import ConfigError

SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(SHAPE))
    (made / "model.safetensors").touch()
    return made


def loaded(folder, *items):
    return load(None, ["device=cpu", "env_service.env_type=world", f"actor_rollout_ref.model.path={folder}", *items])


def test_a_model_of_ones_own_is_trained_with_values_of_its_size(folder):
    small = loaded(folder)
    assert small.model is not None and small.model.size.parameters == pytest.approx(134.5e6, rel=0.01)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "hidden_size": 1152, "intermediate_size": 6144}))
    large = loaded(folder)
    rates = [one.config.actor_rollout_ref.actor.optim.lr for one in (small, large)]
    assert rates[0] > rates[1] > 0
    assert small.config.cold_start.lr > large.config.cold_start.lr
    # The seed policy's words of experience and lengths are not another model's.
    assert small.config.exp_manager.experience_template != "tip {}\n"
    assert small.settings.sizes.max_prompt_length > 192
    adapters = loaded(folder, "actor_rollout_ref.model.lora_rank=8")
    assert adapters.config.actor_rollout_ref.actor.optim.lr > rates[1]


def test_what_is_written_wins_over_what_is_derived(folder):
    ours = loaded(folder, "actor_rollout_ref.actor.optim.lr=0.25", f"{CONTEXT}=30000")
    assert ours.config.actor_rollout_ref.actor.optim.lr == 0.25
    assert ours.config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 30000  # holds the longest row


def test_a_folder_without_sizes_is_not_sized(folder):
    (folder / "config.json").write_text("{}")
    assert read_model(str(folder)) is None
    assert loaded(folder).model is None


@given(
    opening=st.integers(1, 20_000),
    context=st.integers(512, 131_072),
    device=st.sampled_from(["cpu", "cuda"]),
    given_=st.dictionaries(st.sampled_from(LENGTHS), st.integers(8, 4096)),
    steps=st.integers(1, 60),
)
def test_lengths_fit_each_other_the_opening_and_the_context(opening, context, device, given_, steps):
    try:
        found = lengths_of(opening, context, device, given_, steps=steps)
    except ConfigError as error:
        assert "context" in str(error)
        return
    assert not found.keys() & given_.keys()
    prompt, response, longest, reply, _ = ({**found, **given_}[key] for key in LENGTHS)
    assert reply <= response
    if PROMPT not in given_:
        assert prompt > opening
    if not given_:
        assert prompt + response == longest <= context
        assert found[REPLY] <= 4096

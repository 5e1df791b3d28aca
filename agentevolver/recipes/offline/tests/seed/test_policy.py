"""The shipped policy: it loads, fits its tokenizer, lies in the promised window; and a build trains, saves and
records."""

import itertools
import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.seed.app import BASES
from agentevolver.recipes.offline.seed.data import examples
from agentevolver.recipes.offline.seed.demonstrator import Habits
from agentevolver.recipes.offline.seed.evaluate import evaluate
from agentevolver.recipes.offline.seed.policy import build
from agentevolver.recipes.offline.seed.training import SeedTraining, batches, loss_of
from env_service.environments.pocket.env import PocketEnv

QUICK = SeedTraining(hidden=64, intermediate=64, layers=1, heads=2, kv_heads=1, steps=3, batch=8)


@pytest.mark.parametrize("name", ["pocket", "app"])
def test_the_shipped_files_are_small_and_complete(name):
    files = {p.name: p.stat().st_size for p in seed_policy_path(name).iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "build.json",
    } <= set(files)
    assert sum(files.values()) < 8_000_000


def test_the_shipped_model_is_a_qwen2_whose_vocabulary_is_the_tokenizers(model, tokenizer):
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert (
        model.config.vocab_size
        == len(tokenizer)
        == model.get_input_embeddings().num_embeddings
        == model.lm_head.out_features
    )
    assert model.config.hidden_size // model.config.num_attention_heads in (32, 64)
    assert model.dtype == torch.float32 and all(torch.isfinite(p).all() for p in model.parameters())


def test_the_shipped_model_samples_plainly_and_stops_at_the_end_of_a_turn(model, tokenizer):
    settings = model.generation_config
    assert (settings.temperature, settings.top_p, settings.do_sample) == (1.0, 1.0, True)
    assert settings.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    assert settings.pad_token_id == model.config.pad_token_id == tokenizer.pad_token_id


@pytest.mark.service
def test_the_shipped_model_leaves_room_to_learn_and_gains_by_a_true_hint(model, tokenizer):
    tasks = PocketEnv.get_query_list("dev")[:96]
    plain = evaluate(model, tokenizer, tasks=tasks, n=2)
    hinted = evaluate(model, tokenizer, tasks=tasks, n=2, hint=True)
    assert 0.2 < plain.avg < 0.6
    assert hinted.avg > plain.avg + 0.08


def test_the_base_of_pocket_app_is_of_the_seed_policy_s_size_and_reads_with_its_tokenizer():
    base, seed = seed_policy_path("app"), seed_policy_path()
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (base / file).read_text() == (seed / file).read_text()
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    record = json.loads((base / "build.json").read_text())
    assert record["command"].startswith("python -m agentevolver.recipes.offline.seed.app --base strong")
    assert record["recipe"]["steps"] == BASES["strong"].steps
    # docs/protocol.md wants .15 to .20, and says that this one lies above.
    assert 0.15 <= record["sampled at temperature 1"]["dev"]["avg@8"] <= 0.22


def test_a_policy_that_is_not_shipped_is_named():
    with pytest.raises(ValueError, match="no policy 'mine' is shipped; there are pocket, app"):
        seed_policy_path("mine")


def test_the_record_agrees_with_the_promise():
    record = json.loads((seed_policy_path() / "build.json").read_text())
    measured = record["sampled at temperature 1, slack 1"]
    for split in ("dev", "test"):
        assert 0.25 <= measured[split]["avg@4"] <= 0.60
        assert measured[f"{split} with hint"]["avg@4"] >= measured[split]["avg@4"] + 0.15
    assert record["command"].startswith("python -m agentevolver.recipes.offline.seed.policy")


@pytest.mark.service
def test_a_build_writes_what_from_pretrained_reads_and_repeats_itself(tmp_path):
    for name in ("a", "b"):
        build(tmp_path / name, 5, QUICK, Habits(), "test", splits=("dev",), n=1)
    first, second = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("a", "b"))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert len(AutoTokenizer.from_pretrained(tmp_path / "a")) == first.config.vocab_size
    assert json.loads((tmp_path / "a" / "build.json").read_text())["recipe"]["layers"] == 1


def test_padding_does_not_change_the_loss(model, tokenizer):
    batch = list(itertools.islice(examples(tokenizer, 1, Habits()), 6))
    weights = [sum(1.0 if a else 0.1 for a in e.is_action[1:]) for e in batch]
    with torch.no_grad():
        together = loss_of(model, batch, tokenizer.pad_token_id, 0.1).item()
        alone = [loss_of(model, [e], tokenizer.pad_token_id, 0.1).item() for e in batch]
    assert abs(together - sum(w * x for w, x in zip(weights, alone, strict=True)) / sum(weights)) < 1e-4


def test_batches_hold_examples_of_like_length_and_lose_none(tokenizer):
    stream = list(itertools.islice(examples(tokenizer, 1, Habits()), 128))
    got = list(itertools.islice(batches(iter(stream), 8, random.Random(0)), 16))
    assert sorted(len(e.ids) for b in got for e in b) == sorted(len(e.ids) for e in stream)
    assert sum(max(len(e.ids) for e in b) * 8 for b in got) < 1.1 * sum(len(e.ids) for e in stream)

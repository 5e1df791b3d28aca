"""A model whose files disagree on the end of a turn, as conversions leave it."""

import asyncio
import json

import pytest
from transformers import AutoTokenizer

from agentevolver.evaluation.export.merge import name_one_end
from agentevolver.utils.turn_ends import disagreement, ends_by_file, restore_ends
from context_manager.chat import ChatRenderer
from tests.agentevolver.rollout.flows.harness import play
from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, asked, rollout, user
from tests.chat_tokenizers import CHATML, build_tokenizer

END = "<|im_end|>"


@pytest.fixture
def converted(tmp_path):
    """A folder with the end of a turn in config.json alone: the tokenizer has `<|im_start|>` and no padding token."""
    tokenizer = build_tokenizer(CHATML, "<|im_start|>")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (END, "<|eot_id|>")}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": ids[END]}}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids["<|eot_id|>"]]}))
    return tmp_path


def test_the_files_that_lack_the_templates_end_are_named(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    warning = disagreement(tokenizer, ChatRenderer(tokenizer).end_id)
    assert f"{END}, tokenizer_config.json with <|im_start|>, generation_config.json with <|eot_id|>:" in warning
    assert "\n" not in warning and " config.json" not in warning
    agreed = build_tokenizer(CHATML, END)
    assert disagreement(agreed, ChatRenderer(agreed).end_id) is None


def test_a_reply_ends_at_any_of_them_and_the_templates_end_is_trained_on(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    ends = [token for ids in ends_by_file(tokenizer).values() for token in ids]
    renderer = ChatRenderer(tokenizer, {}, ends)
    said = renderer.encode("well then")
    assert all(renderer.ends_turn([*said, token]) for token in ends) and not renderer.ends_turn(said)
    assert renderer.reply({"content": "well then"}) == [*said, renderer.end_id] == [*said, *renderer.encode(END)]


@pytest.mark.parametrize("eos", ["<|endoftext|>", END])
def test_an_engine_stops_at_the_templates_end_that_no_file_names(eos):
    renderer = ChatRenderer(build_tokenizer(CHATML, eos))
    stops = {} if eos == END else {"stop_token_ids": renderer.encode(END)}
    reply = [*renderer.encode("well then"), *renderer.encode(END)]
    played = play(renderer, "causal", "react", [reply], [("user", "o", False)], max_steps=1)
    engine = ScriptedEngine([reply])
    asyncio.run(rollout(renderer, engine).complete(asked(user("hello"))))
    for sampling in (played.engine.sampling[0], engine.calls[0][2]):
        assert {name: value for name, value in sampling.items() if "stop" in name} == stops


def test_an_exported_folder_names_one_end(converted):
    name_one_end(converted)
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.eos_token == END and disagreement(tokenizer, tokenizer.eos_token_id) is None
    assert json.loads((converted / "generation_config.json").read_text())["eos_token_id"][0] == tokenizer.eos_token_id


@pytest.mark.parametrize("config", [{}, {"eos_token_id": 3}, {"eos_token_id": [3, 5], "pad_token_id": 0}])
@pytest.mark.parametrize(
    "generation", [None, {}, {"eos_token_id": [3, 5]}, {"temperature": 0.5, "do_sample": False, "of_ours": {"a": 1}}]
)
def test_a_saved_model_has_the_ends_of_the_model_that_it_was_made_of(tmp_path, config, generation):
    model, saved = tmp_path / "model", tmp_path / "saved"
    for folder, tree in ((model, config), (saved, {"eos_token_id": 7, "pad_token_id": 7, "vocab_size": 9})):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(tree))
    (saved / "generation_config.json").write_text("{}")
    if generation is not None:
        (model / "generation_config.json").write_text(json.dumps(generation))
    restore_ends(saved, str(model))
    assert json.loads((saved / "config.json").read_text()) == {
        "eos_token_id": 7, "pad_token_id": 7, "vocab_size": 9, **config
    }  # fmt: skip
    assert json.loads((saved / "generation_config.json").read_text()) == (generation or {})

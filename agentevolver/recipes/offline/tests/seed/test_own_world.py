"""A seed policy for a world of one's own: its tokens, its sizes, what a build writes, and what the command refuses."""

import json

import pytest
from transformers import AutoTokenizer, Qwen2Config

from agentevolver.recipes.offline.seed.__main__ import main
from agentevolver.recipes.offline.seed.data import MAX_LENGTH, build_tokenizer, pieces
from agentevolver.recipes.offline.seed.demonstrations import Demonstration, DemonstrationError, played
from agentevolver.recipes.offline.seed.own_world import SYNTAX, VOCAB_SIZE, corpus, examples, sizes_of
from agentevolver.recipes.offline.tests.seed.worlds import Parrot

ENV = "agentevolver.recipes.offline.tests.seed.worlds:Parrot"
ACTIONS = {"zebra": ("hello\n\n'tis me", "zebra"), "okapi": ("it's 42?", "kea's", "okapi")}
SHOWN = [played(Parrot, Demonstration(task, actions, f"d:{n}")) for n, (task, actions) in enumerate(ACTIONS.items())]


@pytest.fixture(scope="module")
def learnt():
    return build_tokenizer(corpus(SHOWN), VOCAB_SIZE, SYNTAX, exact=False)


@pytest.fixture
def demos(tmp_path):
    path = tmp_path / "demos.jsonl"
    lines = [{"task_id": task, "actions": actions} for task, actions in ACTIONS.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(demos, *options, env=ENV):
    return main(["--env", env, "--demos", str(demos), "--steps", "2", *options])


def test_what_a_run_loads_makes_the_tokens_that_were_learnt_whatever_the_world_says(learnt, tmp_path):
    learnt.save_pretrained(tmp_path)
    Qwen2Config().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for shown in SHOWN:
        parts = [token for text, _ in pieces(shown.messages, SYNTAX) for token in learnt.encode(text)]
        assert loaded.apply_chat_template(shown.messages, tokenize=True, return_dict=False)[: len(parts)] == parts
    assert loaded.tokenize("zebra") == ["zebra"] and len(loaded) <= VOCAB_SIZE


def test_the_sizes_are_those_of_the_longest_of_each_kind(learnt):
    sizes = sizes_of(learnt, SHOWN)
    found = examples(learnt, SHOWN)
    assert sizes.turns == 3 and sizes.opening + sizes.after >= max(len(one.ids) for one in found)
    runs = [len(text) for one in found for text in "".join("a" if a else " " for a in one.is_action).split()]
    assert sizes.reply == max(runs)
    assert sizes.keys()["actor_rollout_ref.rollout.max_model_len"] == sizes.opening + sizes.after


def test_a_conversation_that_is_too_long_is_refused_by_its_line(learnt):
    long = played(Parrot, Demonstration("zebra", ("9" * MAX_LENGTH,), "demos.jsonl:5"))
    with pytest.raises(DemonstrationError, match=rf"demos.jsonl:5: .* the policy reads {MAX_LENGTH}"):
        examples(learnt, [long])


@pytest.mark.thorough
def test_a_build_writes_a_policy_beside_the_demonstrations_and_the_same_one_again(demos, capsys):
    assert run(demos) == 0
    facts = json.loads((demos.parent / "policy" / "build.json").read_text())
    weights = (demos.parent / "policy" / "model.safetensors").read_bytes()
    assert facts["demonstrations"] == 2 and facts["demonstrations_score"] == 1.0 and 0 <= facts["score on dev"] <= 1
    assert f"actor_rollout_ref.model.path={demos.parent / 'policy'}" in capsys.readouterr().out
    assert run(demos) == 0 and (demos.parent / "policy" / "model.safetensors").read_bytes() == weights


def test_an_isolated_world_is_not_measured_in_this_process(demos, capsys):
    assert run(demos, env=ENV.replace("Parrot", "Caged")) == 0
    assert "not measured" in capsys.readouterr().out
    assert "score on dev" not in json.loads((demos.parent / "policy" / "build.json").read_text())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--env", "nowhere:World"], "cannot import 'nowhere'"),
        (["--env", f"{ENV}s"], "Parrots"),
        (["--split", "test"], "--split test: the world cannot list it: ValueError: unknown split 'test'"),
        (["--demos", "none.jsonl"], "none.jsonl cannot be read"),
        (["--out", "."], "holds other things than a seed policy"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_trained(demos, monkeypatch, capsys, options, why):
    monkeypatch.chdir(demos.parent)
    assert run(demos, *options) == 2
    told = capsys.readouterr().err
    assert told.startswith("seed: ") and told.count("\n") == 1 and why in told


@pytest.mark.parametrize("options", [["--steps", "0"], ["--env-params", "[1]"], ["--env-params", "{"]])
def test_impossible_options_are_refused(demos, capsys, options):
    with pytest.raises(SystemExit) as caught:
        run(demos, *options)
    assert caught.value.code == 2 and options[0] in capsys.readouterr().err


def test_demonstrations_of_measured_tasks_and_failed_ones_are_pointed_at(demos, capsys):
    demos.write_text('{"task_id": "kea\'s", "actions": ["no"]}\n')
    assert run(demos) == 0
    told = capsys.readouterr().out
    assert "tasks of dev are demonstrated (1)" in told and "hardly any demonstration succeeds" in told

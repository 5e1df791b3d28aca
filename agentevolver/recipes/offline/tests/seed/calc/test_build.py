"""What calc's seed policy is trained on, token by token, and what a build writes and measures."""

import itertools
import json
import random
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.recipes.offline.seed.calc.build import VOCAB_SIZE, build, examples
from agentevolver.recipes.offline.seed.calc.demonstrator import CalcHabits, demonstrate
from agentevolver.recipes.offline.seed.calc.measure import SYNTAX, measure_executor, measure_proposer
from agentevolver.recipes.offline.seed.data import END, pieces
from agentevolver.recipes.offline.seed.sampler import SampledRollout
from agentevolver.recipes.offline.seed.training import SeedTraining
from env_service.environments.calc.env import CalcEnv
from env_service.environments.calc.grammar import draw_question, solution
from env_service.environments.calc.tasks import question_of

QUICK = SeedTraining(hidden=32, intermediate=32, layers=1, heads=1, kv_heads=1, steps=3, batch=4)


def test_an_example_is_what_the_chat_template_renders_and_marks_what_the_assistant_wrote(trained):
    for example in itertools.islice(examples(trained, 0, CalcHabits(slip=0.3)), 60):
        text = trained.decode(example.ids)
        spans = [
            trained.decode([token for token, _ in span])
            for mine, span in itertools.groupby(zip(example.ids, example.is_action, strict=True), key=lambda x: x[1])
            if mine
        ]
        assert spans == [piece.split(END)[0] + END for piece in text.split("<|im_start|>assistant\n")[1:]]
        assert example.ids == trained.encode(text, add_special_tokens=False)


def test_what_is_loaded_makes_the_tokens_that_were_learnt_and_renders_the_same_conversation(trained, loaded):
    rng = random.Random(1)
    for messages in (demonstrate(rng, CalcHabits(slip=0.3)) for _ in range(200)):
        parts = [token for text, _ in pieces(messages, SYNTAX) for token in trained.encode(text)]
        whole = loaded.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert whole == parts + loaded.encode("\n")
    assert len(loaded) == VOCAB_SIZE and loaded.eos_token == END


def test_digits_and_operators_are_tokens_of_their_own_and_every_turn_fits(loaded):
    assert loaded.tokenize("calc 3 f 4") == ["calc", "Ġ", "3", "Ġf", "Ġ", "4"]
    longest = draw_question(random.Random(0), "right", 8)
    assert len(loaded.encode(f"<question>{longest}</question>")) + 1 <= SYNTAX.turn_tokens


def test_a_seed_repeats_the_examples(trained):
    def first(seed):
        return list(itertools.islice(examples(trained, seed, CalcHabits()), 40))

    assert first(3) == first(3) != first(4)


class Scripted:
    """Stands in for the sampler: each instance is played by a function of its opening."""

    def __init__(self, act):
        self.act = act

    def __call__(self, model, tokenizer, envs, seed):
        return [self._play(env) for env in envs]

    def _play(self, env):
        question, out = env.get_init_state()["state"][-1]["content"], SampledRollout(env.task_id, [], [], [])
        for text in self.act(question):
            out.actions.append(text)
            out.observations.append(env.step({"role": "assistant", "content": text})["state"][0]["content"])
        out.reward = env.evaluate()
        return out


def test_the_executors_measurement_is_the_mean_of_the_levels(monkeypatch):
    def only_pairs(question):
        words = question.split()
        return ["answer x", "answer 0"] if len(words) > 4 else [f"calc {' '.join(words[1:])}", "answer 0"]

    monkeypatch.setattr("agentevolver.recipes.offline.seed.calc.measure.play", Scripted(only_pairs))
    expected = {}
    for task in CalcEnv.get_query_list("dev"):
        question = question_of(task)
        expected.setdefault(question.level, []).append(solution(question)[-1].value == 0)
    measured = measure_executor(None, None, n=2)
    shares = {str(level): round(sum(wins) / len(wins), 3) for level, wins in expected.items()}
    assert measured["by operands"] == shares
    assert measured["avg@2"] == pytest.approx(sum(shares.values()) / 7, abs=2e-3)
    assert measured["actions"] == 2.0


def test_the_proposers_measurement_counts_what_is_refused_and_how_long_the_rest_is(monkeypatch):
    turn = itertools.count()
    ends = ("0</question>", "0 g 1</question>", "0 g</question>", "0")
    monkeypatch.setattr(
        "agentevolver.recipes.offline.seed.calc.measure.play",
        Scripted(lambda seed: [f"<question>{seed} {ends[next(turn) % 4]}"]),
    )
    measured = measure_proposer(None, None, n=80)
    assert (measured["well formed"], measured["operands"]) == (0.5, {"2": 0.5, "3": 0.5})
    assert measured["refused"] == {"malformed": 0.5} and measured["different"] == 1.0


@pytest.mark.service
def test_a_narrow_policy_is_the_wide_one_trained_on(tmp_path):
    for name, narrowing in (("wide", None), ("narrow", QUICK)):
        build(tmp_path / name, 5, QUICK, CalcHabits(), "of a test", narrowing=narrowing, n=1, proposals=8)
    wide, narrow = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("wide", "narrow"))
    assert not all(torch.equal(p, q) for p, q in zip(wide.parameters(), narrow.parameters(), strict=True))
    records = [json.loads((tmp_path / name / "build.json").read_text()) for name in ("wide", "narrow")]
    assert records[0]["narrowing"] is None and records[1]["narrowing"]["steps"] == 3


@pytest.mark.service
def test_a_build_writes_what_from_pretrained_reads_and_repeats_itself(tmp_path):
    for name in ("a", "b"):
        build(tmp_path / name, 5, QUICK, CalcHabits(), "of a test", n=1, proposals=8)
    first, second = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("a", "b"))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert len(AutoTokenizer.from_pretrained(tmp_path / "a")) == first.config.vocab_size == VOCAB_SIZE
    record = json.loads((tmp_path / "a" / "build.json").read_text())
    assert record["recipe"]["layers"] == 1 and record["command"] == "of a test"
    assert set(record["sampled at temperature 1"]) == {"executor on dev", "proposer"}
    assert Counter(record["sampled at temperature 1"]["executor on dev"]["by operands"]).keys() == set("2345678")


def test_the_longest_episode_fits_the_samplers_budget(trained):
    task = CalcEnv.get_query_list("train", {"level": 8})[0]
    steps = solution(question_of(task))
    said = [f"calc {s.first} {s.operator} {s.second}" for s in steps] + [f"answer {steps[-1].value}"]
    messages = CalcEnv(task, "i").get_init_state()["state"]
    for text, step in zip(said, [*steps, None], strict=True):
        messages.append({"role": "assistant", "content": text})
        if step:
            messages.append({"role": "user", "content": str(step.value)})
    length = len(trained.apply_chat_template(messages, tokenize=True, return_dict=False))
    assert length + 4 * 40 < SYNTAX.episode_tokens  # with four refused actions, and room for the turn after them

"""Demonstrations: reproducible, rendered as the environment renders them, and of an agent that knows the tools but not
the sites."""

import itertools
import random

import pytest

from agentevolver.recipes.offline.seed.data import END, draw_task_id, examples
from agentevolver.recipes.offline.seed.demonstrator import HINT_TEMPLATE, Habits, demonstrate, draw_hint, with_hint
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tasks import SPLITS
from env_service.environments.pocket.tests.replays import hint_parts, replay
from env_service.environments.pocket.wordings import PHRASES

STEADY = Habits(slip=0.0, hint=0.0, polite=0.0, explore=0.0, guess=0.0)


def success(habits, n=300):
    rng = random.Random(1)
    wins = 0.0
    for _ in range(n):
        task_id = draw_task_id(rng)
        actions = [m["content"] for m in demonstrate(task_id, rng, habits) if m["role"] == "assistant"]
        wins += replay(task_id, actions, slack=1).sparse
    return wins / n


def test_a_seed_reproduces_the_data(tokenizer):
    def first(seed):
        return list(itertools.islice(examples(tokenizer, seed, Habits()), 40))

    assert first(3) == first(3)
    assert first(3) != first(4)


def test_an_example_is_what_the_chat_template_renders_and_marks_what_the_assistant_wrote(tokenizer):
    for example in itertools.islice(examples(tokenizer, 0, Habits()), 50):
        text = tokenizer.decode(example.ids)
        spans = [
            list(g)
            for mine, g in itertools.groupby(zip(example.ids, example.is_action, strict=True), key=lambda x: x[1])
            if mine
        ]
        written = [tokenizer.decode([i for i, _ in span]) for span in spans]
        assert all(w.endswith(END) and w.count(END) == 1 for w in written)
        assert written == [piece.split(END)[0] + END for piece in text.split("<|im_start|>assistant\n")[1:]]
        assert example.ids == tokenizer.encode(text, add_special_tokens=False)


def test_demonstrations_never_use_a_task_of_the_usual_lists():
    rng = random.Random(0)
    drawn = {draw_task_id(rng) for _ in range(3000)}
    assert not drawn & {i for split in SPLITS for i in PocketEnv.get_query_list(split)}


def test_the_name_of_a_site_says_nothing_in_a_demonstration():
    rng = random.Random(0)
    named = {demonstrate("pay.k3.20001", rng, Habits())[0]["content"] for _ in range(200)}
    assert len(named) > 50


@pytest.mark.thorough
def test_the_demonstrator_solves_what_needs_no_knowledge_of_the_site_and_little_else():
    knowing = success(Habits(slip=0.0, hint=1.0, follow=1.0, polite=0.0, explore=0.0, guess=0.0))
    naive = success(Habits(slip=0.0, hint=0.0, fix=0.0, polite=0.0, explore=0.0, guess=0.0))
    fixing = success(Habits(slip=0.0, hint=0.0, fix=1.0, polite=0.0, explore=0.0, guess=0.0))
    assert naive < 0.7 < 0.8 < knowing
    assert naive + 0.15 < fixing


def test_slips_cost_success():
    assert success(Habits(slip=0.4, hint=0.0, explore=0.0)) + 0.1 < success(STEADY)


def test_the_demonstrator_shows_no_value_before_it_could_have_read_it():
    rng = random.Random(5)
    for _ in range(200):
        messages = demonstrate(draw_task_id(rng), rng, Habits(slip=0.0, explore=0.0))
        known = ""
        for message in messages:
            if message["role"] == "assistant" and message["content"].startswith("bank.login"):
                assert f"pin {message['content'].split()[1]}" in known
            known += message["content"] + "\n"


@pytest.mark.parametrize("seed", range(30))
def test_a_drawn_hint_is_true_of_its_site(seed):
    task_id = f"pay.k{seed % 16}.1"
    hint, told = draw_hint(random.Random(seed), task_id)
    false = [p for (quirk, _), p in PHRASES.items() if p not in hint_parts(task_id).values() and quirk in told]
    assert told <= {"guard", "pay", "login", "plan", "look"} and told
    assert not any(p == line.strip(" -") for p in false for line in hint.replace(";", "\n").splitlines())


def test_a_hint_is_put_before_the_task_and_nothing_if_there_is_none():
    assert (
        with_hint("pay bob 3", "login first")
        == HINT_TEMPLATE.format(hint="login first", task="pay bob 3")
        == "tip login first\npay bob 3"
    )
    assert with_hint("pay bob 3", "") == "pay bob 3"


def test_some_episodes_explore_without_a_task():
    rng = random.Random(2)
    messages = demonstrate("pay.k1.20001", rng, Habits(explore=1.0))
    assert messages[1]["content"] == "explore" and messages[-1]["role"] == "assistant"

"""Both syntaxes say the same episodes; hermes' is what its chat template, its parser and its tokenizer make of it."""

import json
import random

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.recipes.offline.seed.data import (
    build_tokenizer,
    corpus,
    draw_task_id,
    encode,
    open_turn,
    opening_text,
    pieces,
)
from agentevolver.recipes.offline.seed.demonstrator import Habits, demonstrate
from agentevolver.recipes.offline.seed.policy import inherit
from agentevolver.recipes.offline.seed.syntax import COMPACT, HERMES, arguments
from agentevolver.recipes.offline.seed.training import SeedTraining, make_model
from agentevolver.rollout.tools.formats import tool_format
from context_manager.chat import ChatRenderer
from env_service.environments.pocket.calls import PocketCall
from env_service.environments.pocket.env import PocketEnv
from env_service.environments.pocket.tasks import make_task
from env_service.environments.pocket.tests.replays import reference


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The tokenizer of hermes' syntax as it is trained with, and as a run loads it."""
    folder = tmp_path_factory.mktemp("hermes")
    tokenizer = build_tokenizer(corpus(0, 1200, HERMES), syntax=HERMES)
    tokenizer.save_pretrained(folder)
    Qwen2Config().save_pretrained(folder)
    return tokenizer, AutoTokenizer.from_pretrained(folder)


def conversations(syntax, n=120):
    rng = random.Random(3)
    return [demonstrate(draw_task_id(rng), random.Random(i), Habits(), syntax) for i in range(n)]


def test_a_demonstration_is_the_same_in_both_syntaxes():
    for compact, hermes in zip(conversations(COMPACT), conversations(HERMES), strict=True):
        said = [m["content"] for m in compact if m["role"] == "assistant"]
        called = [m["tool_calls"][0]["function"] for m in hermes if m["role"] == "assistant"]
        assert [text.split()[0].replace(".", "_") for text in said] == [call["name"] for call in called]
        values = [[str(value) for value in json.loads(call["arguments"]).values()] for call in called]
        assert [text.replace(".", "_").split()[1:] for text in said] == values
        # What is refused, and what is shown, is the same too, but for how a call is written.
        told, answers = ([m["content"] for m in c[2:] if m["role"] != "assistant"] for c in (compact, hermes))
        assert [text.startswith("err") for text in told] == [text.startswith("err") for text in answers]


@pytest.mark.thorough
def test_the_template_is_the_pieces_and_a_renderer_goes_on_as_the_demonstrations_do(made):
    _, tokenizer = made
    renderer = ChatRenderer(tokenizer)
    tools = PocketEnv(PocketEnv.get_query_list("dev")[0], "i", {"native_tools": True}).tools()
    for messages in conversations(HERMES, 40):
        whole = tokenizer.apply_chat_template(messages, tokenize=False, tools=tools)
        assert whole == "".join(text for text, _ in pieces(messages, HERMES)) + "\n"
        ids, chat = renderer.encode(opening_text(messages[:2], HERMES)), renderer.for_tools(tools)
        assert chat.opening(messages[:2]) == ids
        (example,) = encode(tokenizer, [messages], HERMES)
        at = len(ids)
        for place in range(2, len(messages) - 1, 2):
            end = example.ids.index(tokenizer.eos_token_id, at) + 1
            assert all(example.is_action[at:end])
            given = chat.continuation(messages[place + 1 : place + 2], closed=True)
            assert example.ids[end : end + len(given)] == given
            at = end + len(given)


def test_what_is_loaded_makes_the_tokens_that_were_learnt(made):
    trained, loaded = made
    for messages in conversations(HERMES, 60):
        for text, _ in pieces(messages, HERMES):
            assert trained.encode(text) == loaded.encode(text)
    assert [len(loaded.encode(tag)) for tag in HERMES.tags] == [1] * 4
    assert loaded.convert_tokens_to_ids("<|im_end|>") == loaded.eos_token_id


def test_the_calls_of_a_solution_are_read_back_and_solve_the_task(made):
    _, tokenizer = made
    assert tool_format("auto", tokenizer).name == "hermes"
    for task_id in PocketEnv.get_query_list("dev")[::6]:
        env = PocketEnv(task_id, "i", {"slack": 0, "native_tools": True})
        for call, compact in zip(make_task(task_id).solution, reference(task_id), strict=True):
            assert str(call) == compact
            message = HERMES.action(call)
            read = HERMES.read(tokenizer, [*tokenizer.encode(HERMES.said(message)), tokenizer.eos_token_id])
            assert read == {**message, "tool_calls": read["tool_calls"]}
            assert [one["function"] for one in read["tool_calls"]] == [one["function"] for one in message["tool_calls"]]
            env.step(read)
        assert env.evaluate() == 1.0


def test_a_value_is_named_by_its_kind_whatever_the_order_of_the_site():
    assert list(arguments(PocketCall("bank.pay", ("5", "ann"))).items()) == [("amount", 5), ("name", "ann")]
    assert list(arguments(PocketCall("bank.pay", ("ann", "5"))).items()) == [("name", "ann"), ("amount", 5)]
    assert arguments(PocketCall("cal.add", ("mon", "3", "bob"))) == {"day": "mon", "hour": 3, "name": "bob"}
    assert arguments(PocketCall("note.tag", ("n1", "home", "yes"))) == {"id": "n1", "tag": "home", "confirm": "yes"}
    assert arguments(PocketCall("doc", ("note.del",))) == {"tool": "note_del"} and arguments(PocketCall("me.pin")) == {}


def test_a_reply_that_calls_nothing_is_answered_as_such(made):
    _, tokenizer = made
    message = HERMES.read(tokenizer, tokenizer.encode("note.list home"))
    assert message == {"role": "assistant", "content": "note.list home"}
    env = PocketEnv(PocketEnv.get_query_list("dev")[0], "i", {"native_tools": True})
    answer = env.step(message)["state"]
    assert answer[0]["role"] == "user" and open_turn(answer, HERMES).startswith("\n<|im_start|>user\nerr no call")


def test_a_model_inherits_what_the_shipped_policy_knows_of_the_tokens_that_both_have(made):
    tokenizer, _ = made
    model = make_model(tokenizer, SeedTraining())
    before = model.lm_head.weight.detach().clone()
    inherit(model, tokenizer)
    shipped = AutoTokenizer.from_pretrained(seed_policy_path())
    known = Qwen2ForCausalLM.from_pretrained(seed_policy_path(), dtype=torch.float32)
    tag, word = "<tool_call>", "\u0120home"
    new, old = tokenizer.convert_tokens_to_ids(word), shipped.convert_tokens_to_ids(word)
    assert torch.equal(model.lm_head.weight[new], known.lm_head.weight[old])
    assert torch.equal(model.model.norm.weight, known.model.norm.weight)
    fresh = tokenizer.convert_tokens_to_ids(tag)
    assert tag not in shipped.get_vocab() and torch.equal(model.lm_head.weight[fresh], before[fresh])

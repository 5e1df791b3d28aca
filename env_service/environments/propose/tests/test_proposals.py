"""Seeds, openings and proposals that are what was asked for."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from agentevolver.llm.prompts import defuse
from env_service.environments.calc.grammar import FAMILIES, MAX_OPERANDS, OPERATORS
from env_service.environments.propose import reading
from env_service.environments.propose.env import ProposeEnv
from env_service.environments.propose.seeds import read_seed
from env_service.environments.propose.topics import LEVELS, SETTINGS, SKILLS, TOPICS

CALC, PYTHON = "calc.left.3.f.00017", "python.counting.search.2.00003"


def facts_of(task_id: str, text: str, **params: Any) -> dict[str, Any]:
    env = ProposeEnv(task_id, "i", params)
    env.step({"role": "assistant", "content": text})
    facts: dict[str, Any] = env.get_info(params={"what": "state"})["facts"]
    return facts


def test_in_calc_the_opening_is_two_words_and_the_seed() -> None:
    state = ProposeEnv(CALC, "i").get_init_state()["state"]
    assert [message["content"] for message in state] == ["propose", "left 3 f"]
    verbose = ProposeEnv(CALC, "i", {"verbose": True}).get_init_state()["state"]
    assert verbose[1] == state[1] and "<question>" in verbose[0]["content"]


def test_in_python_the_opening_says_topic_skill_level_and_setting() -> None:
    system, user = ProposeEnv(PYTHON, "i").get_init_state()["state"]
    for part in (TOPICS["counting"].about, SKILLS["search"], LEVELS[2], SETTINGS[3]):
        assert part in user["content"]
    assert "<program>" in system["content"] and "\\boxed{" in system["content"]
    assert "<program>" not in ProposeEnv(PYTHON, "i", {"program": False}).get_init_state()["state"][0]["content"]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("<question>left 3 f 4 g 7</question>", ""),
        ("<question>\n left  3 f 4\tg 7 \n</question>\n\\boxed{4}", ""),
        ("<think>a <question> of mine</think><question>left 3 f 4 g 7</question>", ""),
        ("it is long </think><question>left 3 f 4 g 7</question><program>left 3 f 4 g  7</program>", ""),
        ("Here it is: <question>left 3 f 4 g 7</question>", "text_around: 11 characters beside the blocks"),
    ],
)
def test_a_proposal_in_calc_is_its_own_program(text: str, warning: str) -> None:
    facts = facts_of(CALC, text)
    answer = "4" if "boxed" in text else None
    assert facts == {
        "question": "left 3 f 4 g 7",
        "program": "left 3 f 4 g 7",
        "answer": answer,
        "refused": "",
        "warning": warning,
        "world": "calc",
        "calls": 0,
    }


def test_the_longest_and_the_shortest_question_are_proposals() -> None:
    for operands in (2, MAX_OPERANDS):
        question = "left 3" + " f 4" * (operands - 1)
        assert facts_of(CALC, f"<question>{question}</question>")["question"] == question


def test_a_proposal_in_python_has_a_program_and_an_answer() -> None:
    question, program = "<question>How many ways?</question>", "<program>\n```python\nprint(1 / 2)\n```\n</program>"
    answer = "$\\boxed{\\frac{1}{2}}$."
    facts = facts_of(PYTHON, f"{question}\n{program}\n{answer}")
    assert (facts["program"], facts["answer"]) == ("print(1 / 2)", "\\frac{1}{2}")
    assert (facts["refused"], facts["warning"], facts["world"]) == ("", "", "python")
    assert facts_of(PYTHON, f"{question}{answer}")["refused"].startswith("malformed: there is no <program>")
    assert facts_of(PYTHON, f"{question}{program}")["refused"].startswith("malformed: there is no \\boxed")
    without = facts_of(PYTHON, f"{question}{answer}", program=False)
    assert (without["refused"], without["program"]) == ("", None)


def test_an_episode_that_never_came_to_a_message_is_no_proposal() -> None:
    env = ProposeEnv(CALC, "i")
    assert env.evaluate() == 0.0
    state = env.get_info(params={"what": "state"})
    assert state["facts"]["refused"].startswith("empty: ") and state["finished"] is False


def test_one_message_ends_the_episode() -> None:
    env = ProposeEnv(CALC, "i")
    env.step({"role": "assistant", "content": "<question>left 3 f 4</question>"})
    with pytest.raises(ValueError, match="is over"):
        env.step({"role": "assistant", "content": "<question>left 3 f 4</question>"})
    assert env.evaluate() == 1.0


def test_a_list_goes_through_all_beginnings_before_one_comes_again() -> None:
    ids = ProposeEnv.get_query_list("train", {"world": "calc", "count": 200})
    size = len(FAMILIES) * 10 * len(OPERATORS)
    begun = [str(read_seed(one)) for one in ids]
    assert len(set(ids)) == 200 and len(set(begun[:size])) == len(set(begun[size : 2 * size])) == size
    assert begun[:size] != begun[size : 2 * size] and ids == ProposeEnv.get_query_list("train", {"count": 200})
    assert ProposeEnv.get_query_list("train", {"count": 50, "offset": 150}) == ids[150:]


def test_seeds_of_python_have_all_levels_and_splits_differ() -> None:
    params = {"world": "python", "count": 300}
    ids = {split: ProposeEnv.get_query_list(split, params) for split in ("train", "dev", "test")}
    assert len(set().union(*ids.values())) == 900
    assert set(Counter(read_seed(one).level for one in ids["train"])) == set(LEVELS)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"world": "chess"}, "world='chess' must be one of calc, python"),
        ({"count": 0}, "count=0"),
        ({"count": True}, "count=True"),
        ({"offset": -1}, "offset=-1"),
        ({"levels": [2]}, "unknown parameter 'levels'"),
        ({"topics": ["primes"]}, "unknown parameter 'topics'"),
    ],
)
def test_a_wrong_filter_is_refused(params: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ProposeEnv.get_query_list("train", params)


@pytest.mark.parametrize(
    "task_id",
    ["", "calc", "calc.left.3.f", "calc.left.3.f.1", "calc.left.33.f.00001", "calc.up.3.f.00001", "calc.left.3.x.00001",
     "python.primes.search.9.00001", "python.love.search.1.00001", "chess.left.3.f.00001", "calc.left.3.f.0000\u0663"],
)  # fmt: skip
def test_a_seed_that_is_not_there_is_refused(task_id: str) -> None:
    with pytest.raises(ValueError, match="unknown task"):
        ProposeEnv(task_id, "i")


@pytest.mark.parametrize("params", [{"verbos": True}, {"program": 1}, {"problem": {}}])
def test_a_wrong_parameter_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        ProposeEnv(CALC, "i", params)


def test_a_proposal_is_read_in_linear_time() -> None:
    for text in ("<" + " " * 200_000, "< " * 100_000, "<question " * 20_000, "</ question" * 20_000):
        began = time.perf_counter()
        list(reading._TAG.finditer(text))
        defuse(text)
        assert time.perf_counter() - began < 2.0

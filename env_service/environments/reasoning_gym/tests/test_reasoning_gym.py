"""The world reasoning_gym without its package: task ids, answers, what a scorer may evaluate; and with it, in a
sandbox."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from env_service.environments.reasoning_gym.action_format import ReasoningGymFormat
from env_service.environments.reasoning_gym.actions import ReasoningAnswer, ReasoningNoAction, parse
from env_service.environments.reasoning_gym.env import ReasoningGymEnv
from env_service.environments.reasoning_gym.library import LIMITS, Library, NotInstalled, root_folder
from env_service.environments.reasoning_gym.screen import EVALUATED, is_harmless
from env_service.environments.reasoning_gym.tasks import read_id, task_ids
from env_service.probing import LocalProbe

LEVELS = {"chain_sum": [0, 1, 2], "knight_swap": [0], "sudoku": [0, 1, 3]}


def test_every_generator_has_its_turn_and_a_longer_list_begins_with_the_shorter() -> None:
    ids = task_ids("train", {"count": 300}, LEVELS)
    assert Counter(one.split(".")[0] for one in ids) == dict.fromkeys(LEVELS, 100)
    assert len(set(ids)) == 300 and ids[:50] == task_ids("train", {"count": 50}, LEVELS)
    assert ids[50:60] == task_ids("train", {"count": 10, "offset": 50}, LEVELS)
    for one in ids:
        assert str(read_id(one, LEVELS)) == one
    others = {*task_ids("dev", {"count": 300}, LEVELS), *task_ids("test", {"count": 300}, LEVELS)}
    assert len(others) == 600 and not others & set(ids)


def test_weights_and_levels_narrow_the_list() -> None:
    drawn = Counter(
        one.split(".")[0] for one in task_ids("train", {"generators": {"chain_sum": 9, "sudoku": 1}}, LEVELS)
    )
    assert set(drawn) == {"chain_sum", "sudoku"} and drawn["chain_sum"] > 5 * drawn["sudoku"]
    levels = {tuple(one.split(".")[:2]) for one in task_ids("train", {"levels": [1, 3]}, LEVELS)}
    assert levels == {("chain_sum", "1"), ("sudoku", "1"), ("sudoku", "3")}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"generators": ["chain_sun"]}, "did you mean 'chain_sum'"),
        ({"generators": {"sudoku": 0}}, "the weight of sudoku is 0"),
        ({"generators": []}, "must be a list of names"),
        ({"level": 9}, "none of the generators has one of the levels"),
        ({"level": 1, "levels": [1]}, "not both"),
        ({"count": True}, "count=True"),
        ({"family": "left"}, "unknown parameter 'family'"),
    ],
)
def test_a_wrong_parameter_of_a_list_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        task_ids("train", params, LEVELS)


@pytest.mark.parametrize(
    "task_id", ["", "chain_sum", "chain_sum.7.1", "chain_sum.1.01", "x.0.1", "sudoku.1.2000000000"]
)
def test_an_id_of_no_task_is_refused(task_id: str) -> None:
    with pytest.raises(ValueError, match=r"unknown|levels|seed"):
        read_id(task_id, LEVELS)


def test_the_last_answer_behind_the_thoughts_is_taken() -> None:
    assert parse(
        "<think><answer>1</answer></think>so <answer>2</answer> no, <answer>\n 3\n4 </answer>"
    ) == ReasoningAnswer("3\n4")
    for text in ("", "42", "<answer> </answer>", "<answer>42", f"<answer>{'1' * 30_000}</answer>"):
        assert isinstance(parse(text), ReasoningNoAction)
    form = ReasoningGymFormat("reasoning_gym")
    assert form.answer_of(str(form.closing("7"))) == "7" and form.answer_of("I think it is 7") is None


@pytest.mark.parametrize(
    ("name", "answer", "fine"),
    [
        ("countdown", "(3 + 4) * 12 - 1", True),
        ("simple_integration", "3*x**2/2 + sin(x) + C", True),
        ("countdown", "__import__('os').system('id')", False),
        ("countdown", "().__class__", False),
        ("puzzle24", "exec(1)", False),
        ("polynomial_multiplication", "lambda: 1", False),
        ("spiral_matrix", "[1, 2, 3]", True),
        ("spiral_matrix", "1 2 3", True),
        ("spiral_matrix", "[exit()]", False),
        ("n_queens", "print(1)", False),
        ("sudoku", "__import__('os')", True),
    ],
)
def test_no_answer_that_a_scorer_evaluates_is_code(name: str, answer: str, fine: bool) -> None:
    assert is_harmless(name, answer) is fine


def test_without_the_package_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match=r"reasoning_gym/setup\.sh"):
        Library(tmp_path)


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    try:
        found = Library.shared()
    except NotInstalled as missing:
        pytest.skip(str(missing))
    yield found
    found.close()


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.mark.service
def test_an_episode_ends_with_its_answer_and_the_package_grades_it(library: Library) -> None:
    probe = LocalProbe(ReasoningGymEnv)
    task_id = "chain_sum.1.17"
    right = str(library.item("chain_sum", 1, 17).answer)
    instance, opening = probe.create(task_id, {})
    assert opening["state"][-1]["content"] == opening["info"]["query"] and right not in opening["state"][0]["content"]
    assert probe.step(instance, said("let me think"))["info"]["refused"]
    result = probe.step(instance, said(f"<answer>{right}</answer>"))
    assert result["is_terminated"] and result["reward"] == 1.0 and result["info"]["answer"] == right
    state = probe.info(instance, {"what": "state"})
    assert state["answer"] == right and state["finished"] and state["facts"] == {"calls": 0}
    probe.release(instance)
    instance, _ = probe.create(task_id, {"max_steps": 1})
    assert probe.step(instance, said(f"<answer>{right}9</answer>"))["reward"] == 0.0
    probe.release(instance)


@pytest.mark.service
def test_what_hangs_a_scorer_or_is_code_is_wrong_and_harms_nobody(library: Library) -> None:
    hasty = Library(root_folder(), replace(LIMITS, wall_s=8.0))
    try:
        right = str(hasty.item("chain_sum", 0, 3).answer)
        assert hasty.verdict("coin_flip", 0, 3, "1e999999999") == 0.0, "a fraction of a billion digits"
        assert hasty.verdict("chain_sum", 0, 3, f"+{right}") == library.verdict("chain_sum", 0, 3, f"+{right}")
    finally:
        hasty.close()
    for name in sorted(EVALUATED):
        assert library.verdict(name, 0, 3, "__import__('os').system('touch /tmp/here')") < 1.0
    assert library.verdict("game_of_life_halting", 0, 3, "zzz") == 0.0
    assert library.verdict("prime_factorization", 0, 3, "zzz") == 0.0
    assert library.verdict("chain_sum", 0, 3, right) == 1.0


@pytest.mark.service
def test_a_task_whose_right_answer_would_be_the_empty_text_is_drawn_again(library: Library) -> None:
    item = library.item("ab", 0, 18)  # the package's program of this seed rewrites itself to nothing
    assert item.answer and library.scored("ab", 0, 18, item.answer) == 1.0
    assert library.scored("ab", 0, 18, "") == 0.0
    assert library.item.__wrapped__("ab", 0, 18) == item != library.item("ab", 0, 17)


@pytest.mark.service
def test_a_task_is_the_same_in_every_process(library: Library) -> None:
    """These go through sets of texts, whose order follows from a process's seed of hashes."""
    names = ("isomorphic_strings", "polynomial_multiplication", "ransom_note")
    made = []
    for _ in range(3):
        library.close()  # the next call starts another process
        made.append([library.item.__wrapped__(name, 0, seed) for name in names for seed in range(4)])
    assert made[0] == made[1] == made[2]


@pytest.mark.service
@pytest.mark.timeout(1800)
def test_the_own_answer_of_every_generator_is_right_by_its_scorer(library: Library) -> None:
    """Twenty seeds of each (`REASONING_GYM_SEEDS=20`), else one of every seventh."""
    seeds = int(os.environ.get("REASONING_GYM_SEEDS", "0"))
    unknown = set()
    for name in list(library.levels)[:: 1 if seeds else 7]:
        for seed in range(max(1, seeds)):
            item = library.item(name, 0, seed)
            assert item.question.strip() and library.item.__wrapped__(name, 0, seed) == item, (name, seed)
            if item.answer is None:
                unknown.add(name)
                continue
            assert library.scored(name, 0, seed, item.answer) == 1.0, (name, seed, item.answer)
            assert library.verdict(name, 0, seed, "zzz") < 1.0, (name, seed)
    assert unknown <= {"boxnet", "rush_hour"}, "the package tells no answer of these two alone"

"""The world calc: chains, episodes, proposed problems, and the run of a program."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_service.action_format import PlainFormat
from env_service.environments.calc.action_format import CalcFormat
from env_service.environments.calc.env import CalcEnv
from env_service.environments.calc.grammar import (
    DIGITS,
    FAMILIES,
    OPERATORS,
    CalcQuestion,
    QuestionError,
    apply,
    evaluate,
    parse_question,
    solution,
)
from env_service.environments.calc.tasks import SPLITS, held_out, question_of, task_ids
from env_service.probing import LocalProbe, ProbeRefused

QUESTIONS = st.builds(
    lambda family, first, rest: CalcQuestion(family, (first, *(d for _, d in rest)), tuple(op for op, _ in rest)),
    st.sampled_from(FAMILIES),
    st.integers(0, 9),
    st.lists(st.tuples(st.sampled_from(OPERATORS), st.integers(0, 9)), min_size=1, max_size=7),
)


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(*calls: tuple[str, Any]) -> dict[str, Any]:
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"c{i}", "type": "function", "function": f} for i, f in enumerate(functions)],
    }


def play(env: CalcEnv, *texts: str) -> list[str]:
    return [env.step(said(text))["state"][0]["content"] for text in texts]


def state(env: CalcEnv) -> dict[str, Any]:
    return env.get_info(params={"what": "state"})


def folded(question: CalcQuestion) -> int:
    """The value by the definition, without `solution`."""
    value, *rest = question.operands if question.family == "left" else question.operands[::-1]
    for operator, operand in zip(question.operators[:: 1 if question.family == "left" else -1], rest, strict=True):
        pair = (value, operand) if question.family == "left" else (operand, value)
        value = apply(operator, *pair)
    return value


@given(QUESTIONS)
def test_a_question_is_read_as_it_is_written_and_worked_out_from_its_end(question: CalcQuestion) -> None:
    assert parse_question(f"  {question} ".replace(" ", "  ")) == question
    steps = solution(question)
    assert len(steps) == question.level - 1
    assert evaluate(str(question)) == str(folded(question)) == str(steps[-1].value)
    assert all(step.value == apply(step.operator, step.first, step.second) for step in steps)


def test_the_tables_stay_what_they_are_and_every_slip_shows() -> None:
    # A policy that is trained on one machine is used on another.
    assert [apply(op, 3, 4) for op in OPERATORS] + [apply(op, 4, 3) for op in OPERATORS] == GOLDEN
    for operator in OPERATORS:
        for digit in range(10):
            assert {apply(operator, digit, other) for other in range(10)} == set(range(10))
            assert {apply(operator, other, digit) for other in range(10)} == set(range(10))


@pytest.mark.parametrize(
    "text",
    ["", "left", "left 3", "left 3 f", "3 f 4", "left 3 f 4 g", "left 3 x 4", "left 10 f 4", "left f 3 4",
     "LEFT 3 f 4", "left 3 f 4 = 9", "left \uff13 f 4", "left " + "3 f " * 8 + "4", "left 3f4"],
)  # fmt: skip
def test_what_is_no_question_is_told(text: str) -> None:
    with pytest.raises(QuestionError):
        parse_question(text)


@given(st.text(max_size=200))
def test_any_text_is_a_question_or_an_error(text: str) -> None:
    with contextlib.suppress(QuestionError):
        assert evaluate(text) in DIGITS


def test_splits_have_their_sizes_and_no_question_in_common() -> None:
    ids = {split: task_ids(split) for split in SPLITS}
    assert {split: len(listed) for split, listed in ids.items()} == {"train": 840, "dev": 112, "test": 336}
    questions = {split: {str(question_of(one)) for one in listed} for split, listed in ids.items()}
    assert sum(map(len, questions.values())) == len(set().union(*questions.values())) == 840 + 112 + 336
    assert held_out() == questions["dev"] | questions["test"]


@pytest.mark.parametrize(
    ("params", "n"),
    [({"level": 5}, 16), ({"levels": [2, 3, 3]}, 32), ({"family": "left"}, 56), ({"family": "right", "level": 8}, 8)],
)
def test_lists_are_narrowed(params: dict[str, Any], n: int) -> None:
    listed = CalcEnv.get_query_list("dev", params)
    assert len(listed) == n
    assert all(question_of(one).level == int(one.split(".")[1]) for one in listed)


@pytest.mark.parametrize(
    "params",
    [{"level": 9}, {"level": True}, {"levels": []}, {"levels": "2"}, {"family": "up"}, {"lewel": 2},
     {"level": 2, "levels": [2]}],
)  # fmt: skip
def test_a_wrong_filter_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"level|family"):
        CalcEnv.get_query_list("dev", params)


@pytest.mark.parametrize(
    "task_id", ["left.9.00000", "left.1.00000", "left.2.92", "left.2.00092", "up.2.00000", "left.2.0000٣"]
)
def test_a_task_that_is_not_there_is_refused(task_id: str) -> None:
    with pytest.raises(ValueError, match="unknown task"):
        CalcEnv(task_id, "i")


@pytest.mark.parametrize("task_id", ["left.2.00000", "right.5.00031", "left.8.00091", "right.8.00040"])
def test_the_calls_of_the_solution_solve_a_task(task_id: str) -> None:
    env = CalcEnv(task_id, "i")
    opened = env.get_init_state()
    question = question_of(task_id)
    assert [m["content"] for m in opened["state"]] == ["solve", str(question)]
    for step in solution(question):
        assert play(env, f"calc {step.first} {step.operator} {step.second}") == [str(step.value)]
    assert env.evaluate() == 0.0
    result = env.step(said(f"answer {step.value}"))
    assert (result["reward"], result["is_terminated"], result["info"]["finished"]) == (1.0, True, True)
    calls = question.level - 1
    assert state(env) == {"facts": {"calls": calls}, "answer": str(step.value), "finished": True, "exact": True}
    with pytest.raises(ValueError, match="is over"):
        env.step(said("answer 1"))


def test_what_is_neither_a_call_nor_an_answer_is_an_error_and_counts_as_a_step() -> None:
    env = CalcEnv("left.3.00000", "i", {"max_steps": 7})
    env.get_init_state()
    texts = ["", "calc 3 f", "calc 3 q 4", "calc 33 f 4", "answer 12", "answer nine", "calc 3 f 4\nanswer 1"]
    assert all(told.startswith("err ") for told in play(env, *texts))
    assert env.is_over and env.evaluate() == 0.0
    assert state(env) == {"facts": {"calls": 0}, "answer": None, "finished": False, "exact": True}


def test_a_thought_before_the_call_is_left_out() -> None:
    env = CalcEnv("left.3.00000", "i")
    assert play(env, "<think>answer 3</think>\ncalc 3 f 4") == [str(apply("f", 3, 4))]


@given(
    st.lists(
        st.one_of(st.text(max_size=40), st.sampled_from(["calc 3 f 4", "answer 3", "run left 3 f 4"])), max_size=14
    )
)
def test_any_text_is_answered(texts: list[str]) -> None:
    for params in ({}, {"native_tools": True}, {"reference": True}, {"is_open_query": True}):
        env = CalcEnv("left.3.00000", "i", params)
        env.get_init_state(params)
        for text in texts:
            if env.is_over:
                break
            assert env.step(said(text))["state"][0]["content"]
        assert env.evaluate() in (0.0, 1.0)


def test_a_proposed_problem_takes_the_place_of_a_task() -> None:
    params = {"problem": {"question": "left 3 f 4", "answer": evaluate("left 3 f 4")}}
    probe = LocalProbe(CalcEnv)
    instance, opened = probe.create("r1.0007", params)
    assert opened["state"][-1]["content"] == "left 3 f 4"
    probe.step(instance, said("calc 3 f 4"))
    probe.step(instance, said(f"answer {apply('f', 3, 4)}"))
    assert probe.evaluate(instance, {}) == 1.0 and probe.info(instance, {"what": "state"})["facts"] == {"calls": 1}
    wrong, _ = probe.create("r1.0007", params)
    probe.step(wrong, said(f"answer {(apply('f', 3, 4) + 1) % 10}"))
    assert probe.evaluate(wrong, {}) == 0.0
    unknown, _ = probe.create("r1.0008", {"problem": {"question": "left 3 f 4"}})
    probe.step(unknown, said(f"answer {apply('f', 3, 4)}"))
    assert probe.evaluate(unknown, {}) == 0.0
    assert probe.info(unknown, {"what": "state"})["answer"] == str(apply("f", 3, 4))


@pytest.mark.parametrize(
    "problem",
    ["left 3 f 4", {}, {"question": ""}, {"question": 3}, {"question": "q", "answer": 7},
     {"question": "q", "answer": " "}, {"question": "q" * 9000},
     {"question": "q", "answer": "7", "checker": "numeric"}, {"question": "q", "label": "7"}],
)  # fmt: skip
def test_a_wrong_problem_is_refused(problem: Any) -> None:
    with pytest.raises(ProbeRefused, match="problem"):
        LocalProbe(CalcEnv).create("r1.0007", {"problem": problem})


def run(program: str) -> tuple[str, dict[str, Any]]:
    probe = LocalProbe(CalcEnv)
    instance, _ = probe.create("any.name", {"reference": True})
    result = probe.step(instance, said(program))
    assert result["is_terminated"] and probe.evaluate(instance, {}) == 0.0
    return result["state"][0]["content"], result


def test_a_program_is_run_once_and_gives_its_value() -> None:
    told, result = run("run left 3 f 4 g 7")
    assert told == evaluate("left 3 f 4 g 7") == result["info"]["answer"]


@pytest.mark.parametrize(
    "program",
    ["left 3 f 4", "run", "run ", "run while True: pass", "run left 3 f 4; left 3 f 4", "run left " + "3 f " * 9 + "4",
     "run open('/etc/passwd').read()", "run left " + "3 f " * 1_000_000 + "4", "run " + "x" * 1_000_000, ""],
)  # fmt: skip
def test_what_is_no_program_ends_with_an_error(program: str) -> None:
    told, result = run(program)
    assert told.startswith("err ") and len(told) < 200 and result["info"]["answer"] is None


def test_native_calls_are_steps() -> None:
    env = CalcEnv("left.3.00000", "i", {"native_tools": True, "max_steps": 3})
    env.get_init_state()
    calls = [("calc", '{"a": 3, "op": "f", "b": "4"}'), ("calc", '{"a": 3, "op": "x", "b": 4}'), ("calk", "{}")]
    result = env.step(called(*calls, ("calc", '{"a": 1, "op": "f", "b": 1}')))
    told = [message["content"] for message in result["state"]]
    assert told[0] == str(apply("f", 3, 4)) and all(text.startswith("err ") for text in told[1:])
    assert result["is_terminated"] and result["info"]["calls"] == 1 and "over" in told[3]
    env = CalcEnv("left.3.00000", "i", {"native_tools": True})
    assert play(env, "calc 3 f 4")[0].startswith("err ") and state(env)["facts"] == {"calls": 0}
    assert env.step(said("answer 3"))["info"]["answer"] == "3"


def test_an_open_query_tells_no_calls_so_that_a_task_made_of_it_may_take_any_number() -> None:
    env = CalcEnv("left.3.00000", "i", {"is_open_query": True, "verbose": True})
    assert "no task" in env.get_init_state()["state"][-1]["content"]
    play(env, "calc 3 f 4")
    assert state(env)["facts"] == {} and env.evaluate() == 0.0


@pytest.mark.parametrize("params", [{"max_step": 3}, {"max_steps": 0}, {"verbose": 1}, {"reference": "yes"}])
def test_a_wrong_parameter_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        CalcEnv("left.3.00000", "i", params)


def test_the_action_format_knows_the_end() -> None:
    form: PlainFormat = CalcFormat("calc")
    assert form.complete(["calc 3 f 4"], "7") == ["calc 3 f 4", "answer 7"]
    assert form.answer_of("answer 7") == "7" and form.answer_of("calc 3 f 4") is None
    assert form.action_of_call("calc", {"a": 3, "op": "f", "b": 4}) == "calc 3 f 4"
    assert form.action_of_call("done", {}) is None and form.signature("calc 3 f 4") == "calc"


GOLDEN = [3, 4, 5, 2, 9, 2, 0, 2]

"""The environment as the service sees it: whole episodes through the contract."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from env_service.base import Message
from env_service.contract import checked_init_state, checked_score, checked_step
from env_service.environments.python_tool.env import PythonEnv
from env_service.environments.python_tool.settings import is_installed
from env_service.environments.python_tool.tasks import load_tasks

from .processes import family, gone, interpreter_pid

pytestmark = pytest.mark.service

TASK = "train.primes.L2.0"
Make = Callable[..., PythonEnv]


def code(source: str) -> Message:
    return {"role": "assistant", "content": f"```python\n{source}\n```"}


def said(content: str) -> Message:
    return {"role": "assistant", "content": content}


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[PythonEnv] = []

    def create(task_id: str = TASK, params: dict[str, Any] | None = None) -> PythonEnv:
        made.append(PythonEnv(task_id, "i", params))
        checked_init_state(made[-1].get_init_state(params))
        return made[-1]

    yield create
    for env in made:
        env.close()


def step(env: PythonEnv, message: Message) -> tuple[str, dict[str, Any]]:
    result = checked_step(env.step(message))
    assert len(result["state"]) == 1
    return result["state"][0]["content"], result


def test_a_proposed_problem_takes_the_place_of_a_task(make: Make) -> None:
    env = make("r1.0007", {"problem": {"question": "How many digits has 2^100?", "answer": "31"}})
    assert env.get_init_state()["state"][-1]["content"] == "How many digits has 2^100?"
    step(env, code("print(len(str(2 ** 100)))"))
    step(env, code("1 / 0"))
    step(env, said("hm"))
    step(env, said(r"\boxed{31.0}"))
    assert env.evaluate() == 1.0
    state = {"facts": {"calls": 2}, "answer": "31.0", "finished": True, "exact": True}
    assert env.get_info(params={"what": "state"}) == state


@pytest.mark.parametrize(
    ("problem", "answer", "grade"),
    [
        ({"answer": "0.5"}, "1/2", 1.0),
        ({"answer": "0.5", "checker": "exact"}, "1/2", 0.0),
        ({"answer": "a b"}, "a  b", 1.0),
        ({"answer": "yes"}, "no", 0.0),
        ({"answer": "x + 1", "checker": "math-verify"}, "1 + x", 1.0),
        ({}, "7", 0.0),
    ],
)
def test_a_proposed_problem_is_graded_by_its_checker(
    make: Make, problem: dict[str, str], answer: str, grade: float
) -> None:
    if problem.get("checker") == "math-verify":
        pytest.importorskip("math_verify")
    env = make("r1.0007", {"problem": {"question": "What comes out?", **problem}})
    step(env, said(f"\\boxed{{{answer}}}"))
    assert env.evaluate() == grade


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (7, "must be an object"),
        ({"answer": "7"}, "`question` must be"),
        ({"question": "q", "answer": "seven", "checker": "numeric"}, "'seven' is no number"),
        ({"question": "q", "answer": "7", "checker": "llm"}, "'llm' is not one of numeric"),
        ({"question": "q", "level": 7}, "unknown key 'level'"),
    ],
)
def test_a_wrong_problem_is_refused(problem: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PythonEnv("r1.0007", "i", {"problem": problem})


def test_the_problem_stays_what_it_was_at_the_start(make: Make) -> None:
    env = make("r1.0007", {"problem": {"question": "q", "answer": "7"}})
    with pytest.raises(ValueError, match="when the instance is created"):
        env.get_init_state({"problem": {"question": "q", "answer": "8"}})


def test_an_open_query_tells_no_calls(make: Make) -> None:
    env = make(TASK, {"is_open_query": True})
    step(env, code("1"))
    assert env.get_info(params={"what": "state"})["facts"] == {}


def test_an_episode_computes_answers_and_is_graded(make: Make) -> None:
    env = make()
    assert step(env, code("n = 7 * 6"))[0].startswith("(no output")
    text, result = step(env, code("n"))
    assert text == "Output:\n```\n42\n```"
    assert (result["reward"], result["is_terminated"], result["info"]["calls"]) == (0.0, False, 2)
    assert env.evaluate() == 0.0
    _, end = step(env, said(f"So \\boxed{{{load_tasks()[TASK].answer}}}"))
    assert (end["reward"], end["is_terminated"], end["info"]["status"]) == (1.0, True, "answered")
    assert checked_score(env.evaluate(params={"sparse": False})) == 1.0


def test_a_wrong_answer_ends_the_episode_without_reward(make: Make) -> None:
    env = make()
    _, end = step(env, said("answer: 1"))
    assert (end["reward"], end["is_terminated"]) == (0.0, True)
    with pytest.raises(ValueError, match="is over"):
        env.step(said("answer: 2"))


def test_a_box_that_code_prints_or_the_caller_shows_is_not_an_answer(make: Make) -> None:
    env = make()
    answer = load_tasks()[TASK].answer
    _, result = step(env, code(f"print('\\\\boxed{{{answer}}}')"))
    assert not result["is_terminated"]
    assert env.evaluate([said(f"\\boxed{{{answer}}}")]) == 0.0


def test_neither_code_nor_answer_brings_a_reminder(make: Make) -> None:
    text, result = step(make(), said("Hm."))
    assert "neither code nor an answer" in text
    assert result["info"]["status"] == "no_action"


def test_the_observation_answers_in_the_way_the_code_was_written(make: Make) -> None:
    env = make()
    assert (
        step(env, said('<tool_call>{"name": "python", "arguments": {"code": "1+1"}}</tool_call>'))[0]
        == "<tool_response>\n2\n</tool_response>"
    )
    assert "no valid JSON" in step(env, said("<tool_call>{</tool_call>"))[0]
    call = {"id": "c", "type": "function", "function": {"name": "python", "arguments": '{"code": "1+1"}'}}
    result = env.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert result["state"] == [{"role": "tool", "content": "2", "tool_call_id": "c", "name": "python"}]


def test_backticks_in_the_output_do_not_close_its_fence(make: Make) -> None:
    text, _ = step(make(), code("print('```python')"))
    assert text == "Output:\n````\n```python\n````"


def test_further_blocks_are_said_not_to_have_run(make: Make) -> None:
    text, _ = step(make(), said("```python\nprint(1)\n```\n```python\nprint(2)\n```"))
    assert "Only the first block was run; 1 more" in text


def test_after_the_time_limit_the_interpreter_is_fresh_and_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_PYTHON_WALL_S", "0.4")
    env = make()
    step(env, code("x = 1"))
    text, result = step(env, code("while True: pass"))
    assert "stopped after 0.4 seconds" in text
    assert "fresh interpreter" in text
    assert (result["info"]["status"], result["info"]["timeouts"], result["info"]["restarts"]) == ("timeout", 1, 1)
    assert "NameError" in step(env, code("x"))[0]


def test_an_interpreter_that_crashes_is_replaced_and_says_so(make: Make) -> None:
    env = make()
    text, result = step(env, code("import os\nos._exit(7)"))
    assert "ended while the code ran (exit status 7)" in text
    assert result["info"]["status"] == "died"
    assert step(env, code("1"))[0].endswith("1\n```")


def test_an_interpreter_killed_from_outside_is_replaced_and_says_so(make: Make) -> None:
    env = make()
    step(env, code("x = 1"))
    os.kill(interpreter_pid(env._sandbox.launcher_pid), signal.SIGKILL)
    deadline = time.monotonic() + 5
    while env._sandbox.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    text, result = step(env, code("print('x' in globals())"))
    assert text.startswith("The interpreter had stopped since the last run. A fresh interpreter was started")
    assert "False" in text
    assert result["info"]["restarts"] == 1


def test_a_stateless_instance_starts_every_run_afresh(make: Make) -> None:
    env = make(params={"stateful": False})
    assert "fresh interpreter" in env.get_init_state()["state"][0]["content"]
    step(env, code("x = 1"))
    assert "NameError" in step(env, code("x"))[0]


def test_an_open_query_has_no_task_and_no_reward(make: Make) -> None:
    env = make(params={"is_open_query": True})
    state = env.get_init_state()
    assert load_tasks()[TASK].question not in state["state"][1]["content"]
    assert state["info"]["is_open_query"] is True
    _, end = step(env, said("\\boxed{done}"))
    assert (end["reward"], end["is_terminated"], env.evaluate()) == (0.0, True, 0.0)


def test_the_answer_is_in_nothing_that_the_agent_sees(make: Make) -> None:
    env = make("train.arithmetic.L4.0")
    answer = load_tasks()["train.arithmetic.L4.0"].answer
    assert answer not in str(env.get_init_state()) + str(env.get_info())


@pytest.mark.parametrize("package", ["numpy", "sympy"])
def test_maths_packages_can_be_imported(make: Make, package: str) -> None:
    if not is_installed(package):
        pytest.skip(f"needs {package}")
    env = make()
    assert package in env.get_init_state()["state"][0]["content"]
    assert step(env, code(f"import {package}\nprint({package}.__name__)"))[0] == f"Output:\n```\n{package}\n```"


@pytest.mark.parametrize("params", [{"statefull": True}, {"stateful": 1}, {"task_files": "/etc"}, {"wall_s": 100}])
def test_an_unknown_or_wrong_parameter_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="parameter"):
        PythonEnv(TASK, "i", params)


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'train\.primes\.L2\.0'"):
        PythonEnv("train.primes.L2.00", "i")


def test_code_that_is_too_long_is_an_observation(make: Make) -> None:
    text, result = step(make(), code("#" * 300_000))
    assert "longer than" in text
    assert not result["is_terminated"]


def test_get_info_tells_tool_limits_and_counts(make: Make) -> None:
    info = make().get_info()
    assert info["tools"][0]["function"]["name"] == "python"
    assert info["limits"]["memory_mb"] == 1024


def test_close_leaves_no_process(make: Make) -> None:
    env = make()
    step(env, code("1"))
    processes = family(env._sandbox.launcher_pid)
    before = len(psutil.Process().children(recursive=True))
    env.close()
    env.close()
    assert gone(processes)
    assert before - len(psutil.Process().children(recursive=True)) == 2


def test_the_hosts_mounts_stay_as_they_were(make: Make) -> None:
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        before = table.read()
    step(make(), code("1"))
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        assert table.read() == before

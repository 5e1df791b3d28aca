"""Task files and settings: what ships is what the generator makes, and every mistake is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from env_service.environments.python_tool import tasks as tasks_module
from env_service.environments.python_tool.checkers import is_correct
from env_service.environments.python_tool.env import PythonEnv
from env_service.environments.python_tool.problems import generate
from env_service.environments.python_tool.sandbox.host import Sandbox, SandboxLimits
from env_service.environments.python_tool.settings import SettingsError, is_installed, paths_of, read_settings
from env_service.environments.python_tool.tasks import PythonTaskFileError, load_tasks

GOOD = {"id": "mine", "question": "1+1?", "answer": "2", "checker": "numeric"}


def test_the_shipped_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    counts = generate.write(tmp_path)
    assert counts == {"train": 308, "dev": 88, "test": 132}
    for split in counts:
        shipped = Path(tasks_module.__file__).with_name("tasks") / f"{split}.jsonl"
        assert shipped.read_bytes() == (tmp_path / f"{split}.jsonl").read_bytes()


def test_no_question_occurs_in_two_splits() -> None:
    questions = [task.question for task in load_tasks().values()]
    assert len(questions) == len(set(questions)) == 528


def test_every_family_has_every_level_in_every_split() -> None:
    cells = {(task.split, task.family, task.level) for task in load_tasks().values()}
    assert len(cells) == 3 * 11 * 4


@pytest.mark.skipif(not is_installed("sympy"), reason="the programs of the linear systems need sympy")
@pytest.mark.service
def test_every_answer_is_found_another_way_by_a_program_in_the_sandbox() -> None:
    sandbox = Sandbox(SandboxLimits(wall_s=40.0), paths_of(["sympy", "mpmath"]))
    tasks = load_tasks()
    try:
        for _, record, problem in generate.generate():
            result = sandbox.run(problem.program)
            assert result.status == "ok", (record["id"], result.output)
            assert is_correct(tasks[str(record["id"])], result.output.strip()), (record["id"], result.output)
    finally:
        sandbox.close()


def _write(path: Path, *records: Any) -> tuple[str]:
    texts = [record if isinstance(record, str | bytes) else json.dumps(record) for record in records]
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in texts))
    return (str(path),)


def test_further_files_are_added_and_named_by_their_split(tmp_path: Path) -> None:
    tasks = load_tasks(
        (*_write(tmp_path / "test.jsonl", GOOD), *_write(tmp_path / "more.jsonl", {**GOOD, "id": "b", "split": "dev"}))
    )
    assert tasks["mine"].split == "test"
    assert tasks["b"].split == "dev"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "line 2"),
        ([1], "JSON object"),
        ({**GOOD, "answr": "3"}, "unknown key 'answr'"),
        ({**GOOD, "answer": ""}, "`answer`"),
        ({**GOOD, "answer": 2}, "`answer`"),
        ({**GOOD, "checker": "eval"}, "checker 'eval'"),
        ({**GOOD, "split": "val"}, "split 'val'"),
        ({**GOOD, "tolerance": -1}, "tolerance"),
        ({**GOOD, "checker": "exact", "tolerance": 1}, "tolerance"),
        ({**GOOD, "tolerance": float("nan")}, "tolerance"),
        ({**GOOD, "tolerance": float("inf")}, "tolerance"),
        *(
            ({**GOOD, "answer": answer}, "reference answer .* is not a number")
            for answer in (
                "He has 2 #### 2",
                "nan",
                "inf",
                "two",
                "1/0",
                "3 apples",
                "x",
                "1e999",
                "9" * 401,
                "[2]",
                " ",
            )
        ),
        *(
            ({**GOOD, "checker": "exact", "answer": answer}, "is empty")
            for answer in (" ", ".", "$$", "\\text{}", "''")
        ),
        *(({**GOOD, "checker": "math-verify", "answer": a}, "braces") for a in ("}{", "\\frac{1}{2", "x}", "$ $")),
        ({**GOOD, "checker": "exact", "answer": "a" * 2001}, "2001 characters"),
        ("[" * 100_000, "line 2"),
        (json.dumps({**GOOD, "question": "é"}, ensure_ascii=False).encode("latin-1"), "line 2"),
    ],
)
def test_a_wrong_line_is_named_with_its_file(tmp_path: Path, record: Any, message: str) -> None:
    files = _write(tmp_path / "wrong.jsonl", {**GOOD, "id": "first"}, record)
    with pytest.raises(PythonTaskFileError, match=message) as caught:
        load_tasks(files)
    assert "wrong.jsonl, line 2" in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\u0085", "\N{GRINNING FACE}"])
def test_signs_that_end_a_line_elsewhere_and_a_mark_at_the_start_are_read(
    tmp_path: Path, encoding: str, sign: str
) -> None:
    path, record = tmp_path / "own.jsonl", {**GOOD, "question": f"a{sign}b"}
    path.write_bytes((json.dumps(record, ensure_ascii=False) + "\r\n\r\n").encode(encoding))
    assert load_tasks((str(path),))["mine"].question == f"a{sign}b"


def test_an_id_that_occurs_twice_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PythonTaskFileError, match="'mine' occurs twice"):
        load_tasks(_write(tmp_path / "twice.jsonl", GOOD, GOOD))
    with pytest.raises(PythonTaskFileError, match="ENV_PYTHON_TASKS"):
        load_tasks((str(tmp_path / "absent.jsonl"),))


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    files = _write(tmp_path / "own.jsonl", GOOD)
    assert load_tasks(files)["mine"].answer == "2"
    assert (
        load_tasks(_write(tmp_path / "own.jsonl", {**GOOD, "answer": "two", "checker": "exact"}))["mine"].answer
        == "two"
    )


def test_math_verify_tasks_are_refused_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "is_installed", lambda name: name != "math_verify")
    with pytest.raises(PythonTaskFileError, match=r"install math-verify\[antlr4_9_3\]"):
        load_tasks(_write(tmp_path / "verify.jsonl", {**GOOD, "checker": "math-verify"}))


def test_task_files_come_from_the_servers_variable_and_never_from_params(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = _write(tmp_path / "own.jsonl", GOOD)
    with pytest.raises(ValueError, match="unknown parameter 'task_files'"):
        PythonEnv.get_query_list("train", {"task_files": path})
    assert "mine" not in PythonEnv.get_query_list("train")
    monkeypatch.setenv("ENV_PYTHON_TASKS", path)
    assert PythonEnv.get_query_list("train")[-1] == "mine"


def test_lists_can_be_narrowed() -> None:
    narrowed = PythonEnv.get_query_list("dev", {"level": 2, "family": "primes"})
    assert narrowed == ["dev.primes.L2.0", "dev.primes.L2.1"]
    for params in ({"level": "2"}, {"family": 3}, {"levle": 2}):
        with pytest.raises(ValueError, match="parameter"):
            PythonEnv.get_query_list("dev", params)
    with pytest.raises(ValueError, match="unknown split 'val'"):
        PythonEnv.get_query_list("val")


def test_settings_are_read_from_variables() -> None:
    settings = read_settings(
        {
            "ENV_PYTHON_WALL_S": "2.5",
            "ENV_PYTHON_MEMORY_MB": "300",
            "ENV_PYTHON_PACKAGES": " pytest, pluggy ",
            "PATH": "x",
        }
    )
    assert (settings.limits.wall_s, settings.limits.memory_mb) == (2.5, 300)
    assert settings.packages == ("pytest", "pluggy")
    assert all(os.path.isdir(path) for path in settings.package_paths)
    assert read_settings({"ENV_PYTHON_PACKAGES": ""}).package_paths == ()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ENV_PYTHON_WALLS", "1", "did you mean ENV_PYTHON_WALL_S"),
        ("ENV_PYTHON_WALL_S", "soon", "not a number"),
        ("ENV_PYTHON_WALL_S", "300", "more than"),
        ("ENV_PYTHON_MEMORY_MB", "-1", "must be positive"),
        ("ENV_PYTHON_THREADS", "1.5", "not a number"),
        ("ENV_PYTHON_PACKAGES", "no_such_package", "no_such_package"),
        ("ENV_PYTHON_PACKAGES", "../etc", "cannot be shown"),
        ("ENV_PYTHON_PACKAGES", "sys", "cannot be shown"),
    ],
)
def test_a_wrong_setting_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings({variable: value})

"""What a run gives back, how it ends, and that hostile code only ever harms its own interpreter."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from env_service.environments.python_tool.sandbox.host import MAX_CODE_BYTES, Clip, Sandbox

from .conftest import Run
from .processes import interpreter_pid

pytestmark = pytest.mark.service


def test_variables_and_imports_last(run: Run) -> None:
    run("import math\nvalue = 20")
    assert run("value + math.floor(1.5)").output == "21\n"


def test_the_value_of_a_last_expression_is_shown_and_none_is_not(run: Run) -> None:
    assert run("'text'").output == "'text'\n"
    assert run("None").output == ""
    assert run("x = 3").output == ""
    assert run("_ = 0\n5\n_").output == "0\n"


def test_definitions_behave_as_in_a_main_module(run: Run) -> None:
    run("class Point:\n    pass\nimport pickle")
    assert run("pickle.loads(pickle.dumps(Point())).__class__.__module__").output == "'__main__'\n"


def test_a_traceback_shows_the_agents_lines_and_nothing_of_the_interpreter(run: Run) -> None:
    result = run("def divide(a):\n    return 1 / a\ndivide(0)")
    assert result.status == "error"
    assert result.detail == "ZeroDivisionError"
    assert "return 1 / a" in result.output
    assert "interpreter.py" not in result.output


def test_a_long_traceback_loses_its_middle_but_not_the_error(run: Run) -> None:
    calls = (
        "\n".join(f"def f{i}():\n    f{i + 1}()" for i in range(40)) + "\ndef f40():\n    raise KeyError('deep')\nf0()"
    )
    output = run(calls).output
    assert "lines left out" in output
    assert output.endswith("KeyError: 'deep'\n")
    assert len(output.splitlines()) < 25


def test_a_syntax_error_names_the_line(run: Run) -> None:
    result = run("a = 1\nb = = 2")
    assert result.detail == "SyntaxError"
    assert "b = = 2" in result.output


def test_exit_does_not_end_the_interpreter(run: Run) -> None:
    run("kept = 1")
    assert "SystemExit: 3" in run("exit(3)").output
    assert run("kept").output == "1\n"


def test_reading_input_meets_its_end(run: Run) -> None:
    assert "EOFError" in run("input()").output


def test_text_beyond_ascii_and_lone_surrogates_pass(run: Run) -> None:
    assert run("print('é中😀')").output == "é中😀\n"
    assert run("print(chr(0xd800))").output == "\\ud800\n"
    assert run("print('\ud800')").detail == "UnicodeEncodeError"


def test_closed_and_replaced_output_streams_come_back(run: Run) -> None:
    run("import sys\nsys.stdout.close()")
    run("sys.stderr = None")
    assert run("print('again')").output == "again\n"


def test_output_written_past_pythons_streams_is_seen(run: Run) -> None:
    assert run("import os\n_ = os.write(1, b'raw')").output == "raw"


def test_a_flood_is_cut_in_the_middle_and_the_interpreter_lives(start: Callable[..., Sandbox]) -> None:
    sandbox = start(output_bytes=1000)
    result = sandbox.run("print('start'); print('x' * 3_000_000); print('end')")
    assert result.status == "ok"
    assert result.output.startswith("start\n")
    assert result.output.endswith("end\n")
    assert "bytes of output left out" in result.output
    assert len(result.output) < 1100


def test_an_endless_flood_ends_the_interpreter(start: Callable[..., Sandbox]) -> None:
    result = start(flood_mb=2, wall_s=60).run("while True: print('x' * 10000)")
    assert result.status == "output_limit"
    assert result.wall_s < 50


def test_an_endless_loop_ends_at_the_time_limit_with_what_it_printed(start: Callable[..., Sandbox]) -> None:
    sandbox = start(wall_s=0.5)
    sandbox.wait_ready()
    result = sandbox.run("print('begun')\nwhile True: pass")
    assert (result.status, result.output) == ("timeout", "begun\n")
    assert 0.5 <= result.wall_s < 5
    assert not sandbox.is_alive()


def test_code_that_catches_everything_is_ended_all_the_same(start: Callable[..., Sandbox]) -> None:
    code = (
        "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except Exception: pass\n"
    )
    result = start(wall_s=0.5).run(
        code + "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    )
    assert result.status == "timeout"


def test_a_crash_of_the_interpreter_is_told_from_an_error_of_the_code(start: Callable[..., Sandbox]) -> None:
    result = start().run("import ctypes\nprint('before')\nctypes.string_at(0)")
    assert (result.status, result.output) == ("died", "before\n")
    assert "SIGSEGV" in result.detail
    assert start().run("import os\nos._exit(5)").detail == "exit status 5"


def test_an_interpreter_killed_between_runs_is_noticed(start: Callable[..., Sandbox]) -> None:
    sandbox = start()
    sandbox.run("x = 1")
    os.kill(interpreter_pid(sandbox.launcher_pid), signal.SIGKILL)
    deadline = time.monotonic() + 5
    while sandbox.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert sandbox.run("x").status == "died"


@pytest.mark.parametrize(
    "attack",
    [
        "import os\nos.close(3)",
        "import os\nos.write(3, b'x' * 100000)",
        "import os\nos.write(3, b'nonsense\\n')",
        "import os\nos.dup2(1, 3)",
        "import os\nos.close(1); os.close(2); os.close(3)\nwhile True: pass",
        "import threading, os\nthreading.Thread(target=lambda: os.read(3, 10**6), daemon=True).start()\nimport "
        "time\ntime.sleep(9)",
    ],
)
def test_tampering_with_the_control_channel_ends_only_this_interpreter(
    start: Callable[..., Sandbox], attack: str
) -> None:
    sandbox = start(wall_s=1.0)
    started = time.monotonic()
    results = [sandbox.run(attack)]
    if results[0].alive and sandbox.is_alive():
        results.append(sandbox.run("1"))
    no_threads_here = "can't start new thread" in results[0].output
    assert results[-1].status in ("died", "timeout") or no_threads_here
    assert time.monotonic() - started < 15


def test_a_forged_status_line_is_not_taken_for_the_next_run(start: Callable[..., Sandbox]) -> None:
    sandbox = start()
    sandbox.run("import os\nos.write(3, b'error Forged\\n' * 3)")
    time.sleep(0.1)
    result = sandbox.run("print('real')")
    assert (result.status, result.output[-5:]) == ("ok", "real\n")


def test_code_that_is_too_long_is_refused_and_long_code_runs(start: Callable[..., Sandbox]) -> None:
    sandbox = start()
    assert sandbox.run("x = 1\n" * 40_000 + "x").output == "1\n"
    with pytest.raises(ValueError, match="longer than"):
        sandbox.run(" " * (MAX_CODE_BYTES + 1))


def test_a_closed_sandbox_says_so(start: Callable[..., Sandbox]) -> None:
    sandbox = start()
    sandbox.close()
    sandbox.close()
    assert not sandbox.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.run("1")


def test_a_clip_keeps_everything_up_to_its_limit_and_both_ends_beyond() -> None:
    exact = Clip(8)
    for byte in b"abcdefgh":
        exact.add(bytes([byte]))
    assert exact.text() == "abcdefgh"
    longer = Clip(8)
    longer.add(b"abcdefghij")
    assert longer.text() == "ab\n... 2 bytes of output left out ...\nefghij"

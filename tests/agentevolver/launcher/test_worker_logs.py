"""What is kept of a failed run's workers."""

from pathlib import Path

import pytest

from agentevolver.launcher.logs import KEPT_BYTES, keep_worker_logs, last_error, last_words, unintended_exits

TRACEBACK = b"Traceback (most recent call last):\n  File 'x.py'\nValueError: the cause\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Ray's folder of logs as a run has it."""
    folder = tmp_path / "ae-run" / "ray" / "session_2026" / "logs"
    folder.mkdir(parents=True)
    (tmp_path / "ae-run" / "ray" / "session_latest").symlink_to(folder.parent)
    return folder


def stream(logs: Path, worker: str, pid: int, kind: str, content: bytes, actor: str = "Worker") -> None:
    (logs / f"worker-{worker}-01000000-{pid}.{kind}").write_bytes(
        b":job_id:01000000\n:actor_name:%s\n" % actor.encode() + content
    )


def test_those_with_a_traceback_and_those_that_died_are_kept_and_no_other(logs: Path, tmp_path: Path) -> None:
    (logs / "gcs_server.out").write_bytes(
        b"Reporting worker exit, worker id = 0b, node id = 1, address = 1.2.3.4, exit_type = SYSTEM_ERROR, "
        b"exit_detail = End of file. a\n"
        b"Reporting worker exit, worker id = 0c, node id = 1, address = 1.2.3.4, exit_type = INTENDED_USER_EXIT, "
        b"exit_detail = fine\n"
    )
    stream(logs, "0a", 11, "err", TRACEBACK, "Env")
    stream(logs, "0a", 11, "out", b"no more than a greeting\n", "Env")
    stream(logs, "0b", 12, "err", b"last words\n", "a/b")
    stream(logs, "0c", 13, "err", b"all is well\n")
    (logs / "raylet.err").write_bytes(TRACEBACK)
    exits = unintended_exits(tmp_path / "ae-run")
    assert exits == {"0b": "SYSTEM_ERROR: End of file. a"}
    assert keep_worker_logs(tmp_path / "ae-run", exits, tmp_path / "kept") == 2
    kept = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    assert set(kept) == {"Env-11.err", "a_b-12.err"}
    assert kept["Env-11.err"].endswith(TRACEBACK)
    assert kept["a_b-12.err"].startswith(b"[SYSTEM_ERROR: End of file. a]\n") and kept["a_b-12.err"].endswith(
        b"last words\n"
    )


def test_a_long_stream_keeps_its_last_traceback_and_its_end(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    noise = b"step\n" * 40_000
    path.write_bytes(
        b"Traceback (most recent call last):\nKeyError: 'an early one'\n" + noise + TRACEBACK + noise + b"the end\n"
    )
    kept = last_words(path)
    assert kept is not None and len(kept) <= KEPT_BYTES + 16
    assert TRACEBACK in kept and kept.endswith(b"the end\n") and b"an early one" not in kept
    path.write_bytes(noise + TRACEBACK)
    assert last_words(path) == (noise + TRACEBACK)[-KEPT_BYTES:]
    path.write_bytes(noise)
    assert last_words(path) is None and last_words(path, anyway=True) == noise[-KEPT_BYTES:]
    path.write_bytes(b"")
    assert last_words(path, anyway=True) is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        # As vLLM's server had it when a GPU's memory was taken beside it: the trainer was told "See root cause above".
        (
            b"(EngineCore pid=12229)     raise ValueError(\n"
            b"(EngineCore pid=12229) ValueError: No available memory for the cache blocks. Try increasing it.\n"
            b"x.py:32: UserWarning: no engine: ModuleNotFoundError(\"No module named 'megatron'\")\n",
            "ValueError: No available memory for the cache blocks. Try increasing it.",
        ),
        (TRACEBACK, "ValueError: the cause"),
    ],
)
def test_the_error_that_a_stream_ends_with(said: bytes, told: str | None) -> None:
    assert last_error(said) == told

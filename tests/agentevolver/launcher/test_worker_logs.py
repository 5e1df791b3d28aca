"""What is kept of a failed run's workers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentevolver.launcher.logs import KEPT_BYTES, keep_worker_logs, last_error, last_words, unintended_exits
from tests.free_ports import free_port

ROOT = Path(__file__).parents[3]
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


@pytest.mark.service
def test_workers_of_a_real_cluster_that_raised_or_were_killed_are_kept_with_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    arguments = [
        *(
            "--target=failing_target",
            f"--conf={ROOT / 'examples' / 'basic.yaml'}",
            "device=cpu",
            "ray.num_cpus=5",
            "ray.dashboard=false",
        ),
        *(f"actor_rollout_ref.model.path={tmp_path / 'model'}", f"experiment.root={tmp_path}"),
        f"env_service.env_url=http://127.0.0.1:{free_port()}",
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "launcher.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(__file__).parent)))},
    )
    assert done.returncode == 1 and "ActorDiedError" in done.stdout, done.stderr
    (launch,) = (tmp_path / "pocket" / "basic" / "launches").glob("*.json")
    folder = tmp_path / "pocket" / "basic" / "logs" / "workers" / launch.stem
    assert f"the last words of failed workers: {folder}" in done.stderr
    assert re.search(r"    Broken-\d+\.err: RuntimeError: no weights in here", done.stderr)
    errors = sorted((path.name.rpartition("-")[0], path.read_text()) for path in folder.glob("*.err"))
    assert [name for name, _ in errors] == ["Broken", "Talker", "Talker"], "and not the one that did well"
    assert errors[0][1].startswith("[USER_ERROR") and "RuntimeError: no weights in here" in errors[0][1]
    complained, killed = sorted((text for _, text in errors[1:]), key=lambda text: "SYSTEM_ERROR" in text)
    assert "KeyError: 'a goal'" in complained
    assert killed.startswith("[SYSTEM_ERROR") and "last words" in killed
    assert not (Path("/tmp") / f"ae-{launch.stem}").exists()

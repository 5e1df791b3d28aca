"""Logs within bounds, while their writers hold them open."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentevolver.config.training import RetentionSettings
from agentevolver.launcher.logs import LogKeeper
from agentevolver.launcher.run import keep_history
from tests.constants import settings_with

WRITER = (
    "import sys\nfor line in sys.stdin: sys.stdout.write(line); sys.stdout.flush(); sys.stderr.write('.'); "
    "sys.stderr.flush()"
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def keeper(logs: Path, size: int, pieces: int, temp_dir: Path | None = None) -> LogKeeper:
    return LogKeeper(logs, temp_dir, settings_with(RetentionSettings, log_mb=size / 1e6, log_files=pieces))


def test_a_writer_that_holds_its_log_open_goes_on_in_an_empty_one_and_nothing_is_lost(logs: Path) -> None:
    log = logs / "env_service.log"
    with log.open("ab") as file:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE
        )
    assert writer.stdin is not None and writer.stderr is not None

    def say(text: str) -> None:
        writer.stdin.write(f"{text}\n".encode())  # type: ignore[union-attr]
        writer.stdin.flush()  # type: ignore[union-attr]
        writer.stderr.read(1)  # type: ignore[union-attr]

    for number in range(6):
        say(f"{number} " + "x" * 9000)
        keeper(logs, 20_000, 9).tidy()
    writer.stdin.close()
    assert writer.wait(30) == 0
    pieces = sorted(logs.glob("env_service.*.log"), key=lambda path: path.stat().st_mtime_ns)
    assert len(pieces) == 2 and log.stat().st_size == 0
    assert [line.split()[0] for piece in pieces for line in piece.read_text().splitlines()] == [
        str(number) for number in range(6)
    ]
    writer.stderr.close()


def test_only_the_newest_pieces_are_kept_those_of_earlier_launches_counted(logs: Path) -> None:
    for launch in range(5):
        (logs / "main.log").write_text(f"launch {launch}")
        os.utime(logs / "main.log", (1e9 + launch, 1e9 + launch))
        keep_history(logs / "main.log")
    (logs / "ray.log").write_text("x" * 100_000)
    (logs / "ray.20200101-000000.log").write_text("old")
    (logs / "my.notes.log").write_text("not a piece")
    keeper(logs, 50_000, 2).tidy()
    texts = {path.name: path.read_text() for path in logs.iterdir()}
    assert sorted(text for name, text in texts.items() if name.startswith("main.")) == ["launch 3", "launch 4"]
    assert (
        sorted(len(text) for name, text in texts.items() if name.startswith("ray.")) == [0, 3, 100_000]
        and "my.notes.log" in texts
    )


def test_rays_workers_are_bounded_too_and_a_file_with_a_hole_counts_what_it_takes(logs: Path, tmp_path: Path) -> None:
    streams = tmp_path / "ae-1" / "ray" / "session_1" / "logs"
    streams.mkdir(parents=True)
    (streams.parent.parent / "session_latest").symlink_to(streams.parent)
    stream = streams / "worker-ab-01000000-7.out"
    stream.write_bytes(b"x" * 1_000_000)
    (streams / "gcs_server.out").write_bytes(b"x" * 1_000_000)
    own = keeper(logs, 500_000, 4, tmp_path / "ae-1")
    with stream.open("r+b") as writer:  # not appending: its next byte is where it was
        writer.seek(1_000_000)
        own.tidy()
        writer.write(b"after")
    assert (streams / "gcs_server.out").stat().st_size == 1_000_000, "Ray rotates those itself"
    assert (streams / f"{stream.name}.1").read_bytes() == b"x" * 1_000_000
    assert stream.stat().st_size == 1_000_005 and stream.stat().st_blocks * 512 <= 65_536
    own.tidy()
    assert stream.stat().st_size == 1_000_005
    stream_again = keeper(logs, 1, 4, tmp_path / "ae-1")
    stream_again.tidy()
    assert (streams / f"{stream.name}.1").read_bytes().lstrip(b"\0") == b"after" and stream.stat().st_size == 0

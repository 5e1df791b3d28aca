"""What a run leaves behind is found again by its record, and nothing else is touched."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agentevolver.launcher.errors import LaunchError
from agentevolver.launcher.records import RunRecord, RunRegistry, experiment_lock, remove_temp_dir, temp_dir_for
from agentevolver.utils.processes import RUN_ID, ProcessId, identify

DEAD = ProcessId(pid=2**22 + 1, start_ticks=1)
SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def registry(tmp_path: Path) -> RunRegistry:
    return RunRegistry(tmp_path / "run")


def record(tmp_path: Path, **changes: object) -> RunRecord:
    plain = RunRecord(run_id="r1", experiment_dir=str(tmp_path / "experiment"), launcher=DEAD, started_at="now")
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_record_survives_the_disk(tmp_path: Path, registry: RunRegistry) -> None:
    written = record(tmp_path, temp_dir="/tmp/ae-x", dashboard="http://127.0.0.1:1").with_process("ray", ProcessId(5, 6))
    registry.write(written)
    assert registry.records() == [written]


def test_a_restarted_service_replaces_its_process(tmp_path: Path) -> None:
    twice = record(tmp_path).with_process("ray", ProcessId(5, 6)).with_process("ray", ProcessId(7, 8))
    assert [item.process for item in twice.started] == [ProcessId(7, 8)]


def test_a_file_that_is_no_record_is_named(registry: RunRegistry) -> None:
    registry.folder.mkdir()
    (registry.folder / "odd.json").write_text(json.dumps({"run_id": "x"}))
    with pytest.raises(LaunchError, match=r"odd\.json is not a run's record"):
        registry.records()


@pytest.mark.service
def test_the_run_that_serves_a_port_is_known_as_long_as_it_serves(tmp_path: Path, registry: RunRegistry) -> None:
    server = subprocess.Popen([*SLEEP, "--port=8123"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    identity = identify(server.pid)
    assert identity is not None
    served = record(tmp_path).with_process("env_service", identity)
    registry.write(served)
    try:
        assert registry.server_on(8123) == served
        assert registry.server_on(812) is None
    finally:
        server.kill()
        server.communicate()
    assert registry.server_on(8123) is None


@pytest.mark.service
def test_reaping_ends_recorded_processes_and_strays_and_removes_the_files(tmp_path: Path, registry: RunRegistry) -> None:
    recorded = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    stray = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env={**os.environ, RUN_ID: "r1"})
    bystander = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    for process in (recorded, stray, bystander):
        assert process.stdout is not None
        process.stdout.readline()
    identity, neighbour = identify(recorded.pid), identify(bystander.pid)
    assert identity is not None and neighbour is not None
    folder = temp_dir_for("test-reaping")
    folder.mkdir()
    # The bystander has a pid that the record holds as well, but from an earlier life.
    reused = ProcessId(neighbour.pid, neighbour.start_ticks - 1)
    dead = record(tmp_path, temp_dir=str(folder)).with_process("ray", identity).with_process("env_service", reused)
    registry.write(dead)
    registry.token_path("r1").write_text("secret")
    try:
        assert registry.reap(dead) == 2
        assert recorded.wait(5) and stray.wait(5)
        assert neighbour.alive
        assert not folder.exists()
        assert list(registry.folder.iterdir()) == []
    finally:
        for process in (recorded, stray, bystander):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_a_record_of_another_machine_is_left_alone(tmp_path: Path, registry: RunRegistry) -> None:
    own = identify(os.getpid())
    assert own is not None
    foreign = record(tmp_path, host="elsewhere", launcher=own)
    registry.write(foreign)
    assert registry.reap(foreign) == 0
    assert registry.records() == [foreign]


def test_a_record_from_before_a_reboot_ends_nothing_and_is_removed(tmp_path: Path, registry: RunRegistry) -> None:
    own = identify(os.getpid())
    assert own is not None
    old = record(tmp_path, boot="another boot", launcher=own).with_process("ray", own)
    registry.write(old)
    assert registry.reap(old) == 0
    assert registry.records() == []


def test_one_launcher_at_a_time_per_experiment(tmp_path: Path, registry: RunRegistry) -> None:
    folder = tmp_path / "experiment"
    own = identify(os.getpid())
    assert own is not None
    registry.write(record(tmp_path, launcher=own))
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from agentevolver.launcher.records import RunRegistry, experiment_lock\n"
        f"with experiment_lock(Path({str(folder)!r}), RunRegistry(Path({str(tmp_path / 'other')!r}))):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(LaunchError, match=f"in use by the launcher with pid {os.getpid()}"), experiment_lock(folder, registry):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with experiment_lock(folder, RunRegistry(tmp_path / "none")):
        pass


@pytest.mark.service
def test_an_experiment_that_a_killed_launcher_left_running_is_refused(tmp_path: Path, registry: RunRegistry) -> None:
    stray = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env={**os.environ, RUN_ID: "r1"})
    assert stray.stdout is not None
    stray.stdout.readline()
    registry.write(record(tmp_path))
    try:
        with (
            pytest.raises(LaunchError, match=r"still written to by 1 processes of run r1.*--kill"),
            experiment_lock(tmp_path / "experiment", registry),
        ):
            pass
    finally:
        stray.kill()
        stray.communicate()


def test_only_a_runs_own_temporary_folder_is_removed(tmp_path: Path) -> None:
    foreign = tmp_path / "mine"
    foreign.mkdir()
    remove_temp_dir(foreign)
    assert foreign.exists()
    link = tmp_path / "ae-link"
    link.symlink_to(foreign)
    remove_temp_dir(link)
    assert foreign.exists() and link.is_symlink()


def test_the_socket_path_in_the_temporary_folder_is_short_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/a/very/long/path/that/some/cluster/gives/to/its/jobs")
    socket_path = temp_dir_for("261120-195416-4045") / "session_2026-11-20_19-56-39_840148_4194304" / "sockets" / "plasma_store"
    assert len(str(socket_path)) < 107

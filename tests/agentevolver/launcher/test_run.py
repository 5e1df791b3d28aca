"""Whole runs of fake services and a fake main job, in a launcher process that gets real signals."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agentevolver.launcher.records import RunRegistry
from agentevolver.utils.errors import LaunchError
from agentevolver.utils.processes import ProcessId, identify
from tests.agentevolver.launcher.fakes import Launch, job, service, until

pytestmark = pytest.mark.service

Launcher = Callable[..., Launch]
FOREVER = "import time; print('working', flush=True); time.sleep(600)"


def left_nothing(one: Launch) -> bool:
    temp_dir = Path("/tmp") / f"ae-test-{one.run_id}"
    return one.running() == 0 and not temp_dir.exists() and not list(one.registry.folder.iterdir())


def main_runs(folder: Path) -> str:
    """The code of a main job that says in the journal that it runs."""
    return f"open({str(folder / 'journal')!r}, 'a').write('main runs\\n')"


def test_services_start_in_order_and_stop_in_reverse_around_the_job(tmp_path: Path, launch: Launcher) -> None:
    main = job(tmp_path, main_runs(tmp_path))
    one = launch(service(tmp_path, "ray", "--well-after=0.4"), service(tmp_path, "env"), job=main)
    assert one.wait() == 0
    assert one.journal() == ["ray start", "ray well", "env start", "env well", "main runs", "env stop", "ray stop"]
    assert left_nothing(one)


def test_the_exit_code_and_the_output_are_the_jobs(tmp_path: Path, launch: Launcher) -> None:
    code = (
        "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40); sys.stdout.flush(); sys.stderr.write('an "
        "error'); sys.exit(7)"
    )
    one = launch(job=job(tmp_path, code))
    assert one.process.stdout is not None
    output = one.process.stdout.read()
    assert one.wait() == 7
    assert output == bytes(range(256)) * 40
    assert "an error" in one.said
    log = (tmp_path / "logs" / "main.log").read_bytes()
    assert output in log and len(log) == len(output) + len("an error")
    assert "the main job ended with exit code 7" in one.said


def test_a_job_that_a_signal_ended_gives_the_shells_code(tmp_path: Path, launch: Launcher) -> None:
    one = launch(job=job(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert one.wait() == 128 + 9
    assert "was ended by SIGKILL" in one.said


@pytest.mark.parametrize("fault", ["--die-at-once", "--die-when"])
def test_a_service_that_is_not_needed_may_die(fault: str, tmp_path: Path, launch: Launcher) -> None:
    trigger = tmp_path / "die"
    arguments = [fault] if fault == "--die-at-once" else [f"{fault}={trigger}"]
    done = tmp_path / "done"
    code = (
        f"import pathlib, time\npathlib.Path({str(trigger)!r}).touch()\nwhile not "
        f"pathlib.Path({str(done)!r}).exists(): time.sleep(0.02)"
    )
    one = launch(
        service(tmp_path, "ray"), service(tmp_path, "logview", *arguments, needed=False), job=job(tmp_path, code)
    )
    until(lambda: "the run goes on without logview" in one.said)
    done.touch()
    assert one.wait() == 0
    assert left_nothing(one)


def test_a_semaphore_of_a_process_that_lived_seconds_is_removed(tmp_path: Path, launch: Launcher) -> None:
    """As vLLM's engine in a short run: made under the start method "spawn", killed along with Python's tracker of such
    things."""
    name = tmp_path / "name"
    code = (
        "import multiprocessing, os, pathlib, signal, time\n"
        "from multiprocessing import resource_tracker\n"
        f"name = pathlib.Path({str(name)!r})\n"
        "if not (pid := os.fork()):\n"
        "    lock = multiprocessing.get_context('spawn').Lock()\n"
        "    name.write_text('/dev/shm/sem.' + lock._semlock.name[1:])\n"
        "    os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)\n"
        "    time.sleep(1.5)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.waitpid(pid, 0)\n"
        "assert os.path.exists(name.read_text())\n"
    )
    one = launch(job=job(tmp_path, code))
    assert one.wait() == 0, one.said
    assert not Path(name.read_text()).exists(), one.said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_everything(number: signal.Signals, code: int, tmp_path: Path, launch: Launcher) -> None:
    one = launch(service(tmp_path, "ray", "--child"), service(tmp_path, "env", "--child"), job=job(tmp_path, FOREVER))
    until(lambda: one.running() == 5)
    until(lambda: "running -c" in one.said)
    one.signal(number)
    assert one.wait() == code
    assert left_nothing(one)
    assert one.journal()[-2:] == ["env stop", "ray stop"]


def test_a_signal_while_services_start_stops_what_is_there(tmp_path: Path, launch: Launcher) -> None:
    main = job(tmp_path, f"{main_runs(tmp_path)}; {FOREVER}")
    one = launch(service(tmp_path, "ray"), service(tmp_path, "env", "--well-after=999"), job=main)
    until(lambda: "env start" in one.journal())
    one.signal(signal.SIGINT)
    assert one.wait() == 130
    assert left_nothing(one)
    assert one.journal() == ["ray start", "ray well", "env start", "env stop", "ray stop"]


def test_a_second_ctrl_c_kills_what_does_not_want_to_stop(tmp_path: Path, launch: Launcher) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('working', flush=True); "
        "time.sleep(600)"
    )
    one = launch(service(tmp_path, "ray", "--stubborn", grace_s=60.0), job=job(tmp_path, stubborn, grace_s=60.0))
    assert one.process.stdout is not None
    assert one.process.stdout.readline() == b"working\n"
    one.signal(signal.SIGINT)
    until(lambda: "stopping" in one.said)
    began = time.monotonic()
    one.signal(signal.SIGINT)
    assert one.wait() == 130
    assert time.monotonic() - began < 10
    assert left_nothing(one)


def test_a_stray_of_the_job_does_not_outlive_it_nor_hold_up_the_end(tmp_path: Path, launch: Launcher) -> None:
    code = (
        f"import subprocess; subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True)"
    )
    one = launch(job=job(tmp_path, code))
    began = time.monotonic()
    assert one.wait() == 0
    assert time.monotonic() - began < 15
    assert left_nothing(one)


def test_a_service_that_cannot_be_mended_ends_the_run_with_one_line(tmp_path: Path, launch: Launcher) -> None:
    trigger = tmp_path / "die"
    one = launch(service(tmp_path, "ray", f"--die-when={trigger}"), job=job(tmp_path, FOREVER))
    until(lambda: "running -c" in one.said)
    trigger.touch()
    assert one.wait() == 1
    assert one.said.splitlines()[-1].startswith("launcher: error: ray ended with exit code 3 during the run")
    assert "Traceback" not in one.said
    assert left_nothing(one)


def test_a_service_that_dies_while_the_next_one_starts_is_noticed(tmp_path: Path, launch: Launcher) -> None:
    trigger = tmp_path / "die"
    one = launch(
        service(tmp_path, "ray", f"--die-when={trigger}"),
        service(tmp_path, "env", "--well-after=999", ready_timeout_s=60.0),
        job=job(tmp_path, FOREVER),
    )
    until(lambda: "env start" in one.journal())
    trigger.touch()
    assert one.wait() == 1
    assert "ray ended with exit code 3" in one.said.splitlines()[-1]
    assert left_nothing(one)


HOLDING = (
    "import pathlib, sys, time\n"
    "from multiprocessing import resource_tracker, shared_memory\n"
    "resource_tracker.register = lambda *_: None\n"
    "segment = shared_memory.SharedMemory(create=True, size=1_000_000)\n"
    "pathlib.Path({path!r}).write_text('/dev/shm/' + segment.name)\n"
    "time.sleep(600)\n"
)


def holding(folder: Path) -> tuple[str, Path]:
    """Code that keeps shared memory, and where it writes the segment's path."""
    path = folder / "segment"
    return HOLDING.format(path=str(path)), path


def guard_of(one: Launch) -> ProcessId:
    """The process beside a launcher that outlives it."""
    for child in psutil.Process(one.process.pid).children():
        if "agentevolver.launcher.guard" in child.cmdline():
            identity = identify(child.pid)
            assert identity is not None
            return identity
    raise AssertionError("there is no guard")


def test_a_killed_launcher_takes_everything_along(tmp_path: Path, launch: Launcher) -> None:
    code, segment = holding(tmp_path)
    one = launch(
        service(tmp_path, "ray", "--child"), service(tmp_path, "env", "--stubborn", "--child"), job=job(tmp_path, code)
    )
    until(lambda: "running -c" in one.said and one.running() == 5 and segment.exists() and segment.read_text())
    other_folder = tmp_path / "other"
    other = Launch(other_folder, "bystander", [service(other_folder, "env")], None)
    try:
        until(lambda: "everything is up" in other.said)
        guard = guard_of(one)
        one.process.kill()
        one.process.wait()
        until(lambda: left_nothing(one) and not Path(segment.read_text()).exists() and not guard.alive, timeout_s=10)
        assert f"the launcher of run {one.run_id} was killed: ended" in one.said
        assert other.running() == 1
    finally:
        other.signal(signal.SIGTERM)
        other.wait()
        other.clean()


def test_a_launcher_that_is_killed_in_its_first_moments_leaves_nothing_either(tmp_path: Path, launch: Launcher) -> None:
    for number in range(4):
        one = launch(service(tmp_path, "ray", "--child"), job=job(tmp_path, FOREVER))
        until(lambda one=one: one.registry.folder.is_dir() and one.registry.records())  # type: ignore[misc]
        time.sleep(0.08 * number)
        one.process.kill()
        one.process.wait()
        until(lambda one=one: left_nothing(one), timeout_s=10)  # type: ignore[misc]


def test_the_next_launch_clears_what_a_launcher_left_that_was_killed_with_its_guard(
    tmp_path: Path, launch: Launcher
) -> None:
    code, segment = holding(tmp_path)
    one = launch(service(tmp_path, "ray", "--child"), service(tmp_path, "env"), job=job(tmp_path, code))
    until(lambda: "running -c" in one.said and one.running() == 4 and segment.exists() and segment.read_text())
    path = Path(segment.read_text())
    until(
        lambda: (
            one.registry.segments_path(one.run_id).exists()
            and path.name in one.registry.segments_path(one.run_id).read_text()
        )
    )
    path.write_bytes(bytes(1_000_000))
    guard = guard_of(one)
    os.kill(guard.pid, signal.SIGKILL)
    one.process.kill()
    one.process.wait()
    until(lambda: one.running() == 1)  # the kernel has ended what the launcher started, and what that started is left
    assert path.exists() and one.registry.records()
    two = launch(job=job(tmp_path, "print('done')"))
    assert two.wait() == 0, two.said
    assert f"run {one.run_id}: its launcher was killed; ended 1 processes, removed 1.0 MB of shared memory" in two.said
    assert not path.exists() and left_nothing(one)


def test_a_run_is_stopped_by_its_record_in_order_and_one_without_a_launcher_is_not(
    tmp_path: Path, launch: Launcher
) -> None:
    one = launch(service(tmp_path, "ray"), service(tmp_path, "env"), job=job(tmp_path, FOREVER))
    until(lambda: "running -c" in one.said)
    registry = RunRegistry(tmp_path / "run")
    (record,) = registry.records()
    assert record.is_called(one.run_id) and record.is_called("experiment") and not record.is_called("another")
    assert registry.stop(record)
    assert one.wait() == 143
    assert one.journal()[-2:] == ["env stop", "ray stop"]
    assert left_nothing(one)
    assert not registry.stop(record), "there is no launcher any more"


def test_stopping_kills_nothing_that_takes_its_time(tmp_path: Path, launch: Launcher) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('working', flush=True); "
        "time.sleep(600)"
    )
    one = launch(job=job(tmp_path, stubborn, grace_s=60.0))
    assert one.process.stdout is not None
    assert one.process.stdout.readline() == b"working\n"
    registry = RunRegistry(tmp_path / "run")
    with pytest.raises(LaunchError, match=r"is still stopping after 0\.5 s; --kill ends it at once"):
        registry.stop(registry.records()[0], timeout_s=0.5)
    assert one.process.poll() is None and one.running() == 1
    one.signal(signal.SIGINT)
    assert one.wait() == 143


def test_a_second_launcher_of_the_same_experiment_is_refused(tmp_path: Path, launch: Launcher) -> None:
    first = launch(job=job(tmp_path, FOREVER))
    until(lambda: "running -c" in first.said)
    second = launch(job=job(tmp_path, FOREVER))
    assert second.wait() == 1
    assert f"in use by the launcher with pid {first.process.pid}" in second.said.splitlines()[-1]
    assert first.process.poll() is None


def test_a_service_is_up_when_it_is_the_one_that_was_started(tmp_path: Path, launch: Launcher) -> None:
    foreign = service(tmp_path, "env", "--launch-id=260101-000000-beef", says_who=True, ready_timeout_s=2.0)
    one = launch(foreign, job=job(tmp_path, "print('done')"))
    assert one.wait() == 1
    assert "another server answers there: env 0, started by launch 260101-000000-beef" in one.said
    assert "running" not in one.said and left_nothing(one)
    two = launch(service(tmp_path, "env", says_who=True), job=job(tmp_path, "print('done')"))
    assert two.wait() == 0, two.said


def test_a_shared_service_that_says_who_it_is_is_used_if_this_checkout_has_started_it(
    tmp_path: Path, launch: Launcher
) -> None:
    reme = service(tmp_path, "reme", shared=True, says_who=True)
    owner = launch(reme)
    until(lambda: "everything is up" in owner.said)
    stranger_folder = tmp_path / "stranger"
    stranger = Launch(stranger_folder, "stranger", [reme], job(stranger_folder, "print('done')"))
    try:
        assert stranger.wait() == 1
        assert f"started by launch {owner.run_id}, which no launcher of this checkout has started" in stranger.said
    finally:
        stranger.clean()
    other = Launch(tmp_path, "other", [reme], job(tmp_path, "print('done')"), experiment="second")
    try:
        assert other.wait() == 0, other.said
        assert f"belongs to run {owner.run_id} and ends with it" in other.said
        assert owner.running() == 1
    finally:
        other.clean()

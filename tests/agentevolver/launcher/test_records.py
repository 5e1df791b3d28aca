"""What a run leaves behind is found again by its record, and nothing else is touched."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentevolver.launcher.records import (
    Cleared,
    RunRecord,
    RunRegistry,
    remove_temp_dir,
    temp_dir_for,
)
from agentevolver.utils.processes import RUN_ID, ProcessId, identify
from tests.agentevolver.launcher.fakes import Sleeper

DEAD = ProcessId(pid=2**22 + 1, start_ticks=1)


@pytest.fixture
def registry(tmp_path: Path) -> RunRegistry:
    return RunRegistry(tmp_path / "run")


def record(tmp_path: Path, **changes: object) -> RunRecord:
    plain = RunRecord(run_id="r1", experiment_dir=str(tmp_path / "experiment"), launcher=DEAD, started_at="now")
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    ["", "[1, 2", "[]", '{"launcher": {"pid": null}, "started": []}'],
    ids=["empty", "torn", "a list", "no pid"],
)
def test_a_file_that_is_no_record_hides_no_other(content: str, tmp_path: Path, registry: RunRegistry) -> None:
    registry.write(record(tmp_path))
    (registry.folder / "odd.json").write_text(content)
    (registry.folder / "a folder.json").mkdir()
    odd, good = registry.records()
    assert good == record(tmp_path) and odd.run_id == "odd" and "odd.json cannot be read" in odd.damaged
    assert not odd.abandoned, "its launcher may live"


def test_a_record_under_the_name_of_another_run_is_not_one(tmp_path: Path, registry: RunRegistry) -> None:
    registry.write(record(tmp_path))
    (registry.folder / "r1.json").rename(registry.folder / "r2.json")
    (found,) = registry.records()
    assert found.run_id == "r2" and "it names another run, r1" in found.damaged


@pytest.mark.service
def test_what_a_run_left_is_found_by_its_id_alone_where_its_record_cannot_be_read(registry: RunRegistry) -> None:
    registry.folder.mkdir()
    (registry.folder / "odd.json").write_text("[1, 2")
    registry.token_path("odd").write_text("secret")
    folder = temp_dir_for("odd")
    folder.mkdir()
    with Sleeper(**{RUN_ID: "odd"}) as stray:
        assert registry.reap(registry.records()[0]).processes == 1
        assert stray.process.wait(5)
    assert not folder.exists() and not list(registry.folder.iterdir())


@pytest.mark.service
def test_reaping_ends_recorded_processes_and_strays_and_removes_the_files(
    tmp_path: Path, registry: RunRegistry
) -> None:
    folder = temp_dir_for("test-reaping")
    folder.mkdir()
    with Sleeper() as recorded, Sleeper(**{RUN_ID: "r1"}) as stray, Sleeper() as bystander:
        # The bystander has a pid that the record holds as well, but from an earlier life.
        reused = ProcessId(bystander.identity.pid, bystander.identity.start_ticks - 1)
        dead = record(tmp_path, temp_dir=str(folder)).with_process("ray", recorded.identity)
        dead = dead.with_process("env_service", reused)
        registry.write(dead)
        registry.token_path("r1").write_text("secret")
        assert registry.reap(dead).processes == 2
        assert registry.reap(dead).processes == 0, "another process was first"
        assert recorded.process.wait(5) and stray.process.wait(5)
        assert bystander.identity.alive
    assert not folder.exists()
    assert list(registry.folder.iterdir()) == []


def test_reaping_removes_what_a_killed_launcher_had_half_written_and_no_other_runs(
    tmp_path: Path, registry: RunRegistry
) -> None:
    dead = record(tmp_path)
    registry.write(dead)
    for name in (".r1.json.123-4", ".r1.token.123-5", ".r1.segments.123-6", ".r10.json.123-4"):
        (registry.folder / name).write_text("{")
    registry.reap(dead)
    assert [path.name for path in registry.folder.iterdir()] == [".r10.json.123-4"]


def test_a_record_of_another_machine_is_left_alone(tmp_path: Path, registry: RunRegistry) -> None:
    own = identify(os.getpid())
    assert own is not None
    foreign = record(tmp_path, host="elsewhere", launcher=own)
    registry.write(foreign)
    assert registry.reap(foreign) == Cleared() and not foreign.abandoned
    assert registry.records() == [foreign]


def test_a_record_from_before_a_reboot_ends_nothing_and_is_removed(tmp_path: Path, registry: RunRegistry) -> None:
    own = identify(os.getpid())
    assert own is not None
    old = record(tmp_path, boot="another boot", launcher=own).with_process("ray", own)
    registry.write(old)
    assert old.abandoned and registry.reap(old) == Cleared()
    assert registry.records() == []


def test_a_record_of_another_container_with_this_ones_name_is_left_alone(tmp_path: Path, registry: RunRegistry) -> None:
    foreign = record(tmp_path, pid_namespace="pid:[1]", temp_dir=str(tmp_path / "ae-x"))
    (tmp_path / "ae-x").mkdir()
    registry.write(foreign)
    assert not foreign.abandoned and registry.reap(foreign) == Cleared()
    assert registry.records() == [foreign] and (tmp_path / "ae-x").exists()


def test_only_a_runs_own_temporary_folder_is_removed(tmp_path: Path) -> None:
    foreign = tmp_path / "mine"
    foreign.mkdir()
    remove_temp_dir(foreign)
    assert foreign.exists()
    link = tmp_path / "ae-link"
    link.symlink_to(foreign)
    remove_temp_dir(link)
    assert foreign.exists() and link.is_symlink()

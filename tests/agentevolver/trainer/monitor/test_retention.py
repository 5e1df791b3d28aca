import math
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentevolver.config.training import RetentionSettings
from agentevolver.trainer.monitor.log import AT_ONCE, Retention, tidy
from agentevolver.utils.files import write_jsonl
from tests.constants import settings_with

RECORD = {"text": "the same words over and over, " * 40}


def kept(plain_steps=100, folder_gb=None, samples_gb=math.inf):
    return settings_with(RetentionSettings, plain_steps=plain_steps, folder_gb=folder_gb, samples_gb=samples_gb)


def write(folder, step, name="step_{}.jsonl"):
    path = folder / name.format(step)
    write_jsonl(path, [{"step": step, **RECORD}] * 4)
    os.utime(path, (1e9 + step, 1e9 + step))
    return path


def names(folder):
    return sorted(
        (path.name for path in folder.iterdir()), key=lambda name: (int(name.split("_")[1].split(".")[0]), name)
    )


@pytest.mark.parametrize(
    ("folder_gb", "samples_gb", "left"), [(None, 2.5, 2), (4.5, 2.5, 2), (1.5, 2.5, 1), (4.5, math.inf, 4)]
)
def test_samples_have_a_bound_of_their_own(folder_gb, samples_gb, left, tmp_path):
    size = write(tmp_path / "other", 0).stat().st_size / 1e9
    bounds = {"folder_gb": folder_gb and folder_gb * size, "samples_gb": samples_gb * size}
    for step in range(1, 7):
        for name in ("samples", "trajectories"):
            write(tmp_path / name, step)
            tidy(tmp_path / name, kept(**bounds))
    assert len(names(tmp_path / "samples")) == left
    assert len(names(tmp_path / "trajectories")) == (6 if folder_gb is None else int(folder_gb))


def test_many_files_are_caught_up_with_step_by_step(tmp_path):
    folder = tmp_path / "trajectories"
    for step in range(1, 41):
        write(folder, step)
    write(folder, 0, "warm_{}.jsonl")
    (folder / ".step_9.jsonl.77-1").touch()
    retention = Retention(tmp_path, kept(plain_steps=4))
    retention.tidy()
    assert sum(path.suffix == ".gz" for path in folder.iterdir()) == AT_ONCE and (folder / "warm_0.jsonl.gz").exists()
    assert not list(folder.glob(".*")), "the draft of a killed run"
    for _ in range(3):
        retention.tidy()
    assert sum(path.suffix == ".jsonl" for path in folder.iterdir()) == 4


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plain=st.integers(1, 4),
    files=st.none() | st.floats(0.5, 6),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_whatever_is_written_in_whatever_order_the_bounds_hold_and_the_newest_is_there(tmp_path, plain, files, steps):
    for path in tmp_path.iterdir():
        path.unlink()
    size = write(tmp_path, 1).stat().st_size
    limit = None if files is None else files * size
    for clock, step in enumerate(steps):
        path = write(tmp_path, step)
        os.utime(path, (2e9 + clock, 2e9 + clock))
        tidy(tmp_path, kept(plain, None if limit is None else limit / 1e9))
        sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        assert path.name in sizes
        assert limit is None or sum(sizes.values()) <= limit or len(sizes) == 1
        assert sum(name.endswith(".jsonl") for name in sizes) <= plain
        assert len({name.removesuffix(".gz") for name in sizes}) == len(sizes)


def test_what_cannot_be_compressed_is_said_once_and_ends_nothing(tmp_path, caplog, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentevolver.trainer.monitor.log.compress", full)
    retention = Retention(tmp_path, kept(plain_steps=1))
    (tmp_path / "trajectories").mkdir()
    for step in (1, 2, 3):
        write(tmp_path / "trajectories", step)
        retention.tidy()
    assert caplog.text.count("No space left on device") == 1
    assert len(names(tmp_path / "trajectories")) == 3


def test_nothing_else_is_touched(tmp_path):
    for name in ("metrics.jsonl", "tasks/train.jsonl", "launches/a.json", "experience/warm_start.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n" * 100)
    Retention(tmp_path, kept(plain_steps=1, folder_gb=1e-9)).tidy()
    assert len([path for path in tmp_path.rglob("*.json*")]) == 4

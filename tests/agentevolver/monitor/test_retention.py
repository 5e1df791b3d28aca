"""What a long run keeps of its rollouts and samples."""

import cProfile
import os
import pstats

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentevolver.config.training import RetentionSettings
from agentevolver.monitor.log import AT_ONCE, Retention, StepFolder
from agentevolver.utils.files import read_jsonl, write_jsonl

RECORD = {"text": "the same words over and over, " * 40}


def kept(plain_steps=None, folder_gb=None, samples_gb=None):
    return RetentionSettings(plain_steps=plain_steps, folder_gb=folder_gb, samples_gb=samples_gb, log_mb=None)


def write(folder, step, name="step_{}.jsonl"):
    path = folder / name.format(step)
    write_jsonl(path, [{"step": step, **RECORD}] * 4)
    os.utime(path, (1e9 + step, 1e9 + step))
    return path


def names(folder):
    return sorted(
        (path.name for path in folder.iterdir()), key=lambda name: (int(name.split("_")[1].split(".")[0]), name)
    )


def test_the_newest_stay_as_they_are_and_older_ones_are_compressed(tmp_path):
    folder = StepFolder(tmp_path, kept(plain_steps=2))
    for step in range(1, 6):
        write(tmp_path, step)
        folder.tidy(step)
    assert names(tmp_path) == ["step_1.jsonl.gz", "step_2.jsonl.gz", "step_3.jsonl.gz", "step_4.jsonl", "step_5.jsonl"]
    assert read_jsonl(tmp_path / "step_1.jsonl.gz") == [{"step": 1, **RECORD}] * 4


def test_the_oldest_are_dropped_where_the_folder_grows_too_large_and_the_newest_stays(tmp_path):
    size = write(tmp_path, 0).stat().st_size
    folder = StepFolder(tmp_path, kept(folder_gb=3.5 * size / 1e9))
    for step in range(1, 9):
        write(tmp_path, step)
        folder.tidy(step)
        assert folder.total == sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3.5 * size
    assert names(tmp_path) == ["step_6.jsonl", "step_7.jsonl", "step_8.jsonl"]
    StepFolder(tmp_path, kept(folder_gb=1e-9)).tidy(8)
    assert names(tmp_path) == ["step_8.jsonl"], "even where it is too large by itself"


@pytest.mark.parametrize(
    ("folder_gb", "samples_gb", "left"), [(None, 2.5, 2), (4.5, 2.5, 2), (1.5, 2.5, 1), (4.5, None, 4)]
)
def test_samples_have_a_bound_of_their_own(folder_gb, samples_gb, left, tmp_path):
    size = write(tmp_path / "other", 0).stat().st_size / 1e9
    bounds = {"folder_gb": folder_gb and folder_gb * size, "samples_gb": samples_gb and samples_gb * size}
    kept_here = {name: StepFolder(tmp_path / name, kept(**bounds)) for name in ("samples", "trajectories")}
    for step in range(1, 7):
        for name, folder in kept_here.items():
            write(tmp_path / name, step)
            folder.tidy(step)
    assert len(names(tmp_path / "samples")) == left
    assert len(names(tmp_path / "trajectories")) == (6 if folder_gb is None else int(folder_gb))


def test_by_default_a_hundred_thousand_steps_stay_below_the_limit():
    """184 KB a step as measured, a twelfth of that once compressed (measured at the same level), is 1.6 GB of 10."""
    from agentevolver.config.checks import load

    section = load().settings.retention
    assert section.plain_steps * 184e3 + 1e5 * 184e3 / 12 < section.folder_gb * 1e9


def test_a_resumed_run_counts_what_is_there_and_replaces_what_it_repeats(tmp_path):
    first = StepFolder(tmp_path, kept(plain_steps=1))
    for step in range(1, 7):
        write(tmp_path, step)
        first.tidy(step)
    second = StepFolder(tmp_path, kept(plain_steps=1))
    for step in range(4, 6):  # back to step 3
        path = write(tmp_path, step)
        os.utime(path, (2e9 + step, 2e9 + step))
        second.tidy(step)
    assert names(tmp_path) == [*(f"step_{step}.jsonl.gz" for step in range(1, 5)), "step_5.jsonl", "step_6.jsonl.gz"]
    assert second.total == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_validation_that_comes_after_its_step_is_not_missed(tmp_path):
    folder = StepFolder(tmp_path, kept(plain_steps=1))
    write(tmp_path, 0)
    for step in range(1, 5):
        folder.tidy(step)
        write(tmp_path, step)
    folder.tidy(5)
    assert names(tmp_path) == [*(f"step_{step}.jsonl.gz" for step in range(4)), "step_4.jsonl"]


def test_an_experiment_of_an_earlier_release_is_caught_up_with_step_by_step(tmp_path):
    for step in range(1, 41):
        write(tmp_path, step)
    write(tmp_path, 0, "warm_{}.jsonl")
    (tmp_path / ".step_9.jsonl.77-1").touch()
    folder = StepFolder(tmp_path, kept(plain_steps=4))
    folder.tidy(40)
    assert (
        sum(path.suffix == ".gz" for path in tmp_path.iterdir()) == AT_ONCE and (tmp_path / "warm_0.jsonl.gz").exists()
    )
    assert not list(tmp_path.glob(".*")), "the draft of a killed run"
    for step in range(41, 44):
        folder.tidy(step)
    assert sum(path.suffix == ".jsonl" for path in tmp_path.iterdir()) == 4


def test_a_step_costs_the_same_after_any_number_of_steps(tmp_path):
    def cost(name, steps):
        (tmp_path / name).mkdir()
        folder = StepFolder(tmp_path / name, kept(plain_steps=1, folder_gb=1.0))
        for step in range(1, steps + 1):
            (tmp_path / name / f"step_{step}.jsonl.gz").touch()
        folder.tidy(steps)
        write(tmp_path / name, steps + 1)
        profile = cProfile.Profile()
        profile.runcall(folder.tidy, steps + 1)
        return pstats.Stats(profile).total_calls

    assert cost("many", 1500) <= 1.05 * cost("few", 15)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plain=st.none() | st.integers(1, 4),
    files=st.none() | st.floats(0.5, 6),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_whatever_is_written_in_whatever_order_the_bounds_hold_and_the_newest_is_there(tmp_path, plain, files, steps):
    for path in tmp_path.iterdir():
        path.unlink()
    size = write(tmp_path, 1).stat().st_size
    limit = None if files is None else files * size
    folder, previous = StepFolder(tmp_path, kept(plain, None if limit is None else limit / 1e9)), 0
    for clock, step in enumerate(steps):
        if step <= previous:  # a resume, in another process
            folder = StepFolder(tmp_path, kept(plain, None if limit is None else limit / 1e9))
        previous = step
        path = write(tmp_path, step)
        os.utime(path, (2e9 + clock, 2e9 + clock))
        folder.tidy(step)
        sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        assert path.name in sizes and folder.total == sum(sizes.values())
        assert limit is None or folder.total <= limit or len(sizes) == 1
        assert plain is None or sum(name.endswith(".jsonl") for name in sizes) <= plain
        assert len({name.removesuffix(".gz") for name in sizes}) == len(sizes)


def test_what_cannot_be_compressed_is_said_once_and_ends_nothing(tmp_path, caplog, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentevolver.monitor.log.compress", full)
    retention = Retention(tmp_path, kept(plain_steps=1))
    (tmp_path / "trajectories").mkdir()
    for step in (1, 2, 3):
        write(tmp_path / "trajectories", step)
        retention.tidy(step)
    assert caplog.text.count("No space left on device") == 1
    assert len(names(tmp_path / "trajectories")) == 3


def test_nothing_else_is_touched(tmp_path):
    for name in ("metrics.jsonl", "tasks/train.jsonl", "launches/a.json", "experience/warm_start.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n" * 100)
    Retention(tmp_path, kept(plain_steps=1, folder_gb=1e-9)).tidy(100_000)
    assert len([path for path in tmp_path.rglob("*.json*")]) == 4


@pytest.mark.parametrize("value", [0, -1])
def test_a_bound_below_the_smallest_is_refused(value):
    from agentevolver.config.checks import load
    from agentevolver.errors import ConfigError

    with pytest.raises(ConfigError, match=r"retention\.plain_steps: .* greater than or equal to 1"):
        load(None, [f"retention.plain_steps={value}"])

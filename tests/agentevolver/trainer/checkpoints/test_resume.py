import json
import random
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentevolver.trainer.checkpoints import (
    KINDS,
    LAYOUT,
    MANIFEST,
    MARKER,
    Start,
    mark,
    problem_with,
    retire,
    seal,
    shard,
    start_of,
    whole_checkpoints,
)
from agentevolver.utils.errors import TrainingFailed
from agentevolver.utils.files import append_jsonl


def trainer(folder, mode="auto", path=None):
    return {"resume_mode": mode, "resume_from_path": path, "default_local_dir": str(folder / "checkpoints")}


def save(folder, step, *, sealed=True):
    """A checkpoint with all of its files, which are small."""
    checkpoint = folder / "checkpoints" / f"global_step_{step}"
    (checkpoint / "actor" / "huggingface").mkdir(parents=True)
    for kind in KINDS.values():
        torch.save({"step": step}, shard(checkpoint / "actor", kind, 1, 0))
    (checkpoint / "actor" / LAYOUT).write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    (checkpoint / "actor" / "huggingface" / "config.json").write_text("{}")
    for name in ("trainer.pt", "data.pt"):
        torch.save({"step": step}, checkpoint / name)
    if sealed:
        seal(checkpoint)
    else:
        (checkpoint.parent / MARKER).write_text(str(step))
    return checkpoint


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two checkpoints, sealed, with the metrics of their steps."""
    folder = tmp_path_factory.mktemp("made")
    for step in (2, 4):
        save(folder, step)
    for step in range(5):
        append_jsonl(folder / "metrics.jsonl", {"step": step})
    return folder


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def found(folder):
    start = start_of(trainer(folder), folder)
    return start.checkpoint and start.checkpoint.name


def test_the_marked_one_the_named_one_or_none(run):
    assert start_of(trainer(run), run) == Start(run / "checkpoints" / "global_step_4")
    assert start_of(trainer(run, "disable"), run) == Start(None)
    named = run / "checkpoints" / "global_step_2"
    assert start_of(trainer(run, "resume_path", str(named)), run) == Start(named)
    mark(named)
    assert start_of(trainer(run), run) == Start(named), "who goes back by hand is followed, without a warning"
    with pytest.raises(TrainingFailed, match=r"resume_from_path=.*global_step_9 is no checkpoint"):
        start_of(trainer(run, "resume_path", str(run / "global_step_9")), run)


@pytest.mark.parametrize("content", [None, "", "4\x00", "abc", "²", "6"])
def test_a_lost_or_torn_marker_or_one_that_names_what_is_not_there_costs_nothing(run, content):
    marker = run / "checkpoints" / MARKER
    marker.unlink()
    if content is not None:
        marker.write_text(content)
    start = start_of(trainer(run), run)
    assert start.checkpoint == run / "checkpoints" / "global_step_4" and "going on from global_step_4" in start.warning


@pytest.mark.parametrize("lost", ["", "actor", "trainer.pt", "data.pt", "actor/model_world_size_1_rank_0.pt"])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_checkpoint_that_lost_a_part_gives_way_to_the_one_before(run, lost, sealed):
    checkpoint = run / "checkpoints" / "global_step_4"
    path = checkpoint / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not sealed:
        (checkpoint / MANIFEST).unlink(missing_ok=True)
    start = start_of(trainer(run), run)
    if not sealed and lost == "actor/model_world_size_1_rank_0.pt":
        assert start.checkpoint == checkpoint, "it may lie on the node of its rank"
        return
    assert start.checkpoint == run / "checkpoints" / "global_step_2"
    assert start.warning.count("global_step_4 ") == 1 and "going on from global_step_2" in start.warning


NAMES = ["trainer.pt", "data.pt", *(f"actor/{kind}_world_size_1_rank_0.pt" for kind in KINDS.values())]


@pytest.mark.thorough
def test_a_file_that_was_cut_short_at_any_byte_is_noticed(run):
    """Sealed or not: by its size, or because the table at the end of torch's archive is gone."""
    checkpoint = run / "checkpoints" / "global_step_4"
    draw = random.Random(0)
    for name in NAMES:
        path = checkpoint / name
        content = path.read_bytes()
        cuts = range(len(content)) if name == "trainer.pt" else sorted(draw.sample(range(len(content)), 40))
        for sealed in (True, False):
            if not sealed:
                (checkpoint / MANIFEST).rename(run / "aside")
            assert problem_with(checkpoint) is None
            for cut in cuts:
                path.write_bytes(content[:cut])
                assert problem_with(checkpoint).startswith(f"has a torn {name}"), (name, cut, sealed)
            path.write_bytes(content)
        (run / "aside").rename(checkpoint / MANIFEST)


@pytest.mark.thorough
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_torn_the_run_goes_on_from_what_is_whole_or_refuses(made, tmp_path, data):
    shutil.rmtree(tmp_path, ignore_errors=True)
    run = shutil.copytree(made, tmp_path)
    damaged = set()
    for step in (2, 4):
        files = [*NAMES, "actor/fsdp_config.json", "actor/huggingface/config.json"]
        for name in data.draw(st.lists(st.sampled_from(files), max_size=2, unique=True), label=f"torn in {step}"):
            path = run / "checkpoints" / f"global_step_{step}" / name
            content = path.read_bytes()
            path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
            damaged.add(step)
    marker = data.draw(st.sampled_from(["2", "4", "", None]), label="marker")
    (run / "checkpoints" / MARKER).unlink() if marker is None else (run / "checkpoints" / MARKER).write_text(marker)
    left = [step for step in (2, 4) if step not in damaged]
    if not left:
        with pytest.raises(TrainingFailed, match="4 steps and no whole checkpoint"):
            start_of(trainer(run), run)
        with pytest.raises(
            TrainingFailed, match="no whole checkpoint"
        ):  # not the policy of the beginning in the place of what was learned
            start_of({**trainer(run), "val_only": True}, run)
        return
    expected = 2 if marker == "2" and 2 in left else left[-1]
    assert found(run) == f"global_step_{expected}"


def test_the_manifest_may_be_torn_too(run):
    manifest = run / "checkpoints" / "global_step_4" / MANIFEST
    content = manifest.read_bytes()
    for cut in range(0, len(content), 9):
        manifest.write_bytes(content[:cut])
        assert found(run) == "global_step_4"


def test_what_was_only_validated_is_no_loss(tmp_path):
    assert start_of(trainer(tmp_path), tmp_path) == Start(None)
    append_jsonl(tmp_path / "metrics.jsonl", {"step": 0})
    assert start_of(trainer(tmp_path), tmp_path) == Start(None)
    (tmp_path / "checkpoints" / "global_step_1" / "actor").mkdir(parents=True)  # killed while the first one was written
    start = start_of(trainer(tmp_path), tmp_path)
    assert start.checkpoint is None and "global_step_1 has no policy in actor/; no step was finished" in start.warning


def test_the_newest_is_the_one_that_was_written_last(tmp_path):
    """A run that went back to step 4 goes on from there, although its abandoned branch had come further."""
    for step in (4, 8, 6):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / MARKER).unlink()
    assert [checkpoint.step for checkpoint in whole_checkpoints(tmp_path / "checkpoints")] == [4, 8, 6]
    assert found(tmp_path) == "global_step_6"


def test_one_that_is_not_whole_takes_no_place_of_one_that_is(tmp_path):
    for step in (2, 4, 6):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "global_step_6" / "data.pt").unlink()
    (tmp_path / "checkpoints" / "global_step_x").mkdir()
    retire(tmp_path / "checkpoints", 2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("g*")) == [
        "global_step_2",
        "global_step_4",
        "global_step_x",
    ]


def test_a_checkpoint_that_was_removed_in_part_is_none(run, monkeypatch):
    """A kill while it is removed leaves nothing under its name."""
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    retire(run / "checkpoints", 1)
    monkeypatch.undo()
    (run / "checkpoints" / MARKER).unlink()
    assert [checkpoint.step for checkpoint in whole_checkpoints(run / "checkpoints")] == [4]


def test_a_manifest_without_a_schema_is_of_the_first_and_one_of_a_newer_release_is_refused(run):
    sealed = run / "checkpoints" / "global_step_4" / MANIFEST
    manifest = json.loads(sealed.read_text())
    assert manifest.pop("schema") == 1
    sealed.write_text(json.dumps(manifest))
    assert found(run) == "global_step_4"
    # Also where it is not the one that would be gone on from.
    other = run / "checkpoints" / "global_step_2" / MANIFEST
    other.write_text(json.dumps({**manifest, "schema": 2}))
    for section in (trainer(run), trainer(run, "resume_path", str(sealed.parent))):
        with pytest.raises(TrainingFailed, match="global_step_2 was written by a newer release") as refused:
            start_of(section, run)
        assert "\n" not in str(refused.value)
    assert start_of(trainer(run, "disable"), run) == Start(None)

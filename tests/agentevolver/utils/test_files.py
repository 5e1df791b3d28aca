"""Files that outlive a kill, a full disk and a loss of power: what is synced, in which order, and who may read it."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentevolver.utils import files
from agentevolver.utils.files import (
    append_jsonl,
    create,
    cut_torn,
    move,
    read_jsonl,
    remove_tree,
    sync_tree,
    whole,
    write_json,
    write_jsonl,
    write_text,
)


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the disk, in order: the names that are synced, and what takes whose place."""
    seen = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (seen.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")))), fsync(handle))[1],
    )
    monkeypatch.setattr(
        Path, "replace", lambda path, target: (seen.append(("replace", Path(target))), replace(path, target))[1]
    )
    return seen


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_on_the_disk_before_it_takes_its_name_and_its_name_before_whole_returns(tmp_path, calls):
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    (synced, draft), replaced, folder = calls
    assert synced == "sync" and draft.parent == path.parent and draft.name.startswith(".x.json.")
    assert replaced == ("replace", path) and folder == ("sync", path.parent)
    assert json.loads(path.read_text()) == {"a": 1} and list(path.parent.iterdir()) == [path]


def test_a_tree_is_synced_files_first(tmp_path, calls):
    for name in ("actor/model.pt", "actor/huggingface/config.json", "data.pt"):
        (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / name).touch()
    (tmp_path / "c" / "link").symlink_to("/nowhere")
    sync_tree(tmp_path / "c")
    order = [path.relative_to(tmp_path).as_posix() for _, path in calls]
    assert sorted(order) == sorted(
        ["c", "c/actor", "c/actor/huggingface", "c/actor/huggingface/config.json", "c/actor/model.pt", "c/data.pt"]
    )
    for path in order:
        assert all(order.index(inner) < order.index(path) for inner in order if inner.startswith(f"{path}/"))


def test_a_sync_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    write_text(path, "old")

    def full(handle):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="Input/output error"):
        write_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_two_drafts_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "x"
    with whole(path) as first, whole(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_an_appended_line_is_synced(tmp_path, calls):
    append_jsonl(tmp_path / "x.jsonl", {"n": 1})
    assert calls == [("sync", tmp_path / "x.jsonl")]


def test_a_line_that_only_fits_in_part_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    append_jsonl(path, {"n": 1})
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda handle, data: write(handle, data[:4]))
    with pytest.raises(OSError, match="only 4 of 8 bytes"):
        append_jsonl(path, {"n": 2})
    assert read_jsonl(path) == [{"n": 1}]


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=8), max_size=3), max_size=5),
    data=st.data(),
)
def test_wherever_a_file_is_cut_whole_lines_stay_and_the_next_one_is_read(tmp_path, records, data):
    path = tmp_path / "x.jsonl"
    records = [record for record in records if all(not isinstance(v, int) or abs(v) < 2**63 for v in record.values())]
    write_jsonl(path, records)
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    kept = content[:cut].count(b"\n")
    append_jsonl(path, {"next": 1})
    found = [record for line in path.read_bytes().splitlines() if (record := files.parse(line)) is not None]
    assert found[:kept] == records[:kept] and found[-1] == {"next": 1} and len(found) <= kept + 2


@given(
    records=st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=2), max_size=5),
    cut=st.integers(0, 500),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_torn_last_line_is_cut_off_and_nothing_else(tmp_path, monkeypatch, records, cut):
    monkeypatch.setattr(files, "_BLOCK", 7)
    path, lines = tmp_path / "lines.jsonl", [json.dumps(record).encode() + b"\n" for record in records]
    text = b"".join(lines)
    path.write_bytes(text[:cut])
    cut_torn(path)
    wanted = b"".join(line for i, line in enumerate(lines) if len(b"".join(lines[: i + 1])) <= cut)
    assert path.read_bytes() == wanted
    cut_torn(tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


def test_a_tree_that_is_removed_is_gone_at_once_and_so_is_what_a_kill_left_of_another(tmp_path, monkeypatch):
    folder, left = tmp_path / "global_step_2", tmp_path / ".global_step_2.gone"
    for path in (folder, left):
        path.mkdir()
        (path / "x").touch()
    remove_tree(folder)
    assert list(tmp_path.iterdir()) == []
    remove_tree(folder)
    folder.mkdir()
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: None)  # killed before a file is gone
    remove_tree(folder)
    assert not folder.exists() and left.exists()


def test_a_file_that_is_moved_is_synced_before_and_after(tmp_path, calls):
    (tmp_path / "a").write_text("x")
    move(tmp_path / "a", tmp_path / "b")
    assert calls == [("sync", tmp_path / "a"), ("replace", tmp_path / "b"), ("sync", tmp_path)]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_what_is_private_is_so_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "token", "secret", mode=0o600)
        os.close(create(tmp_path / "log", 0o640))
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / name) for name in ("token", "log")] == [0o600, 0o640]


def test_a_private_draft_is_private_before_its_first_byte(tmp_path):
    with whole(tmp_path / "token", mode=0o600) as draft:
        assert mode_of(draft) == 0o600 and draft.stat().st_size == 0
        draft.write_text("secret")


def test_a_new_file_is_really_new(tmp_path):
    (tmp_path / "x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        create(tmp_path / "x")
    assert not (tmp_path / "elsewhere").exists()

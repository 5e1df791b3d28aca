"""The journal keeps what was finished and forgets what was torn."""

import multiprocessing
import os
import tracemalloc

import pytest

from task_manager.journal import JournalError, JournalInUse, PipelineJournal, read_journal


def test_records_are_found_again(tmp_path):
    with PipelineJournal(tmp_path) as journal:
        journal.put("exploration", "k1", {"a": [1, "ü"]})
        journal.put("verdict", "k1", None)
    with PipelineJournal(tmp_path) as journal:
        assert journal.get("exploration", "k1") == {"a": [1, "ü"]}
        assert journal.get("exploration", "k2") is None
        assert [key for key, _ in journal.items("exploration")] == ["k1"]


@pytest.mark.parametrize("torn", [b'{"kind": "a", "key": "k2", "val', b"x", b'{"kind":"a","key":"k2","value":1}'])
def test_a_torn_line_is_cut_off_and_the_next_record_is_whole(tmp_path, torn):
    with PipelineJournal(tmp_path) as journal:
        journal.put("a", "k1", 1)
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(torn)
    assert read_journal(tmp_path) == {"a": {"k1": 1}}
    with PipelineJournal(tmp_path) as journal:
        assert journal.get("a", "k2") is None
        journal.put("a", "k2", 2)
    assert read_journal(tmp_path) == {"a": {"k1": 1, "k2": 2}}


@pytest.mark.parametrize("line", ["{\n", '{"kind": "a"}\n', "[]\n"])
def test_a_broken_line_is_named(tmp_path, line):
    (tmp_path / "journal.jsonl").write_text('{"kind":"a","key":"k","value":1}\n' + line)
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: not a record"):
        PipelineJournal(tmp_path)


def test_a_record_is_written_once(tmp_path):
    with PipelineJournal(tmp_path) as journal:
        journal.put("a", "k", 1)
        with pytest.raises(JournalError, match="is recorded already"):
            journal.put("a", "k", 2)


def test_one_process_at_a_time(tmp_path):
    with PipelineJournal(tmp_path), pytest.raises(JournalInUse, match=f"in use by process {os.getpid()}"):
        PipelineJournal(tmp_path)
    PipelineJournal(tmp_path).close()


def _die_with_the_lock(folder):
    PipelineJournal(folder).put("a", "k", 1)
    os.kill(os.getpid(), 9)


def test_the_lock_goes_with_the_process(tmp_path):
    child = multiprocessing.get_context("fork").Process(target=_die_with_the_lock, args=(tmp_path,))
    child.start()
    child.join()
    with PipelineJournal(tmp_path) as journal:
        assert journal.get("a", "k") == 1


def test_reading_needs_a_journal_but_no_lock(tmp_path):
    with pytest.raises(JournalError, match="there is no journal yet"):
        read_journal(tmp_path)
    with PipelineJournal(tmp_path) as journal:
        journal.put("a", "k", 1)
        assert read_journal(tmp_path) == {"a": {"k": 1}}


def test_values_stay_on_the_disk(tmp_path):
    """4,000 explorations of 40 kB took 170 MB."""
    with PipelineJournal(tmp_path) as journal:
        for number in range(400):
            journal.put("exploration", f"{number:024}", {"steps": ["x" * 40_000]})
    tracemalloc.start()
    try:
        with PipelineJournal(tmp_path) as journal:
            for number in range(400, 500):
                journal.put("exploration", f"{number:024}", {"steps": ["x" * 40_000]})
            assert sum(len(value["steps"][0]) for _, value in journal.items("exploration")) == 500 * 40_000
        records = read_journal(tmp_path)["exploration"]
        assert len(records) == 500 and records[f"{499:024}"] == {"steps": ["x" * 40_000]}
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_record_that_was_spoilt_is_named(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"kind":"a","key":"k","value":[1}\n')
    with PipelineJournal(tmp_path) as journal, pytest.raises(JournalError, match="no valid record at byte 0"):
        journal.get("a", "k")

"""The journal keeps what was finished and forgets what was torn."""

import os

import pytest

from task_manager.journal import JournalError, JournalInUse, PipelineJournal, read_journal


@pytest.mark.parametrize("torn", [b"x", b'{"kind":"a","key":"k2","value":1}'])
def test_a_torn_line_is_cut_off_and_the_next_record_is_whole(tmp_path, torn):
    with PipelineJournal(tmp_path) as journal:
        journal.put("a", "k1", {"a": [1, "ü"]})
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(torn)
    with PipelineJournal(tmp_path) as journal:
        assert journal.get("a", "k1") == {"a": [1, "ü"]} and journal.get("a", "k2") is None
        journal.put("a", "k2", 2)
        assert read_journal(tmp_path) == {"a": {"k1": {"a": [1, "ü"]}, "k2": 2}}, "to read needs no lock"


@pytest.mark.parametrize("line", ["{\n", '{"kind": "a"}\n'])
def test_a_broken_line_is_named(tmp_path, line):
    (tmp_path / "journal.jsonl").write_text('{"kind":"a","key":"k","value":1}\n' + line)
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: not a record"):
        PipelineJournal(tmp_path)


def test_one_process_at_a_time(tmp_path):
    with PipelineJournal(tmp_path), pytest.raises(JournalInUse, match=f"in use by process {os.getpid()}"):
        PipelineJournal(tmp_path)
    PipelineJournal(tmp_path).close()


def test_a_record_that_was_spoilt_is_named(tmp_path):
    (tmp_path / "journal.jsonl").write_text('{"kind":"a","key":"k","value":[1}\n')
    with PipelineJournal(tmp_path) as journal, pytest.raises(JournalError, match="no valid record at byte 0"):
        journal.get("a", "k")

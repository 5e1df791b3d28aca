"""Dump files: whole or not at all, and a line that cannot be read names itself."""

import json

import pytest
from experience_fakes import experience

from experience_manager.dumps import DumpError, read_dump, write_dump
from experience_manager.errors import StoreUnwritable


def test_what_was_written_is_read_back(tmp_path):
    records = [
        experience(content=f"do {i}\nthen \u00fc\u2028x", task_ids=(str(i),), created=1e9 + i, modified=1e9)
        for i in range(5)
    ]
    assert write_dump(tmp_path / "sub" / "d.jsonl", records) == 5
    assert read_dump(tmp_path / "sub" / "d.jsonl") == records
    assert [e.workspace for e in read_dump(tmp_path / "sub" / "d.jsonl", "mine")] == ["mine"] * 5
    lines = (tmp_path / "sub" / "d.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["memory_type"] for line in lines] == ["task"] * 5


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"when_to_use": "a"', "Expecting"),
        ('{"when_to_use": "a", "content": "b", "score": ' + "9" * 5000 + "}", "limit"),
    ],
)
def test_a_line_that_is_no_experience_is_named(tmp_path, line, words):
    write_dump(tmp_path / "d.jsonl", [experience(), experience()])
    with (tmp_path / "d.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DumpError, match=rf"d\.jsonl:3: .*{words}"):
        read_dump(tmp_path / "d.jsonl")


def test_a_dump_that_cannot_be_written_leaves_the_old_one(tmp_path):
    write_dump(tmp_path / "d.jsonl", [experience()])
    with pytest.raises(StoreUnwritable, match="cannot be written"):
        write_dump(tmp_path / "d.jsonl" / "below_a_file.jsonl", [experience()])
    assert len(read_dump(tmp_path / "d.jsonl")) == 1

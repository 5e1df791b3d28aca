"""Journals: a torn line is cut off, a record is made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.recipes.agent0.journal import RoundJournal
from agentevolver.utils.errors import TrainingFailed


@settings(deadline=None, max_examples=40)
@given(cut=st.integers(0, 10_000), count=st.integers(0, 6))
def test_cut_anywhere_it_goes_on_with_the_whole_records(
    tmp_path_factory: pytest.TempPathFactory, cut: int, count: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "drawn.jsonl"
    journal = RoundJournal(path, "id")
    for i in range(count):
        journal.add({"id": f"r1.{i}", "text": "ä" * i})
    data = path.read_bytes() if count else b""
    path.write_bytes(data[: cut % (len(data) + 1)])
    again = RoundJournal(path, "id")
    assert [record["id"] for record in again] == [f"r1.{i}" for i in range(path.read_bytes().count(b"\n"))]
    for i in range(len(again), count + 1):
        again.add({"id": f"r1.{i}"})
    assert len(RoundJournal(path, "id")) == max(count + 1, len(again))


def test_nothing_is_recorded_twice_and_a_broken_line_within_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    journal = RoundJournal(path, "id")
    journal.add({"id": "a"})
    with pytest.raises(TrainingFailed, match="a is recorded already"):
        journal.add({"id": "a"})
    path.write_text('{"id": "a"}\n{"id": \n{"id": "b"}\n')
    with pytest.raises(TrainingFailed, match=r"pool.jsonl:2: not a record"):
        RoundJournal(path, "id")
    path.write_text('{"id": "a"}\n{"id": "a"}\n')
    with pytest.raises(TrainingFailed, match="nothing may be made twice"):
        RoundJournal(path, "id")

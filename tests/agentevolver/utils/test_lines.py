"""Files that somebody else writes: grown, torn, replaced, cut short, missing."""

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentevolver.utils.files import GrowingFile


def values(file: GrowingFile) -> list[object]:
    return [line.value["n"] for line in file.read()]


def line(n: int) -> bytes:
    return json.dumps({"n": n}).encode() + b"\n"


def test_a_broken_line_is_counted_and_passed_over(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "x.jsonl")
    file.path.write_bytes(line(1) + b"{nonsense\n" + b"[1]\n" + line(2))
    assert values(file) == [1, 2] and file.broken == 2


def test_a_file_that_was_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "x.jsonl")
    file.path.write_bytes(line(1) + line(2))
    assert values(file) == [1, 2]
    draft = tmp_path / "draft"
    draft.write_bytes(line(1) + line(7) + line(8))
    draft.replace(file.path)
    assert values(file) == [1, 7, 8] and file.generation == 1


def test_a_file_that_was_cut_short_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "x.jsonl")
    file.path.write_bytes(line(1) + line(2))
    assert values(file) == [1, 2]
    file.path.write_bytes(line(1))
    assert values(file) == [1] and file.generation == 1
    file.path.unlink()
    assert values(file) == [] and file.generation == 2


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 400), max_size=12))
def test_however_the_writer_is_interrupted_every_line_comes_once(cuts: list[int], tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.unlink(missing_ok=True)
    file, whole, found = GrowingFile(path), b"".join(line(n) for n in range(40)), []
    with path.open("ab") as out:
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True):
            out.write(whole[start:end])
            out.flush()
            found += values(file)
    assert found == list(range(40)) and file.generation == 0

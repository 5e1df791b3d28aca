"""Rollouts: found by what one looks for, whole when one asks for one, and never those of a file that has changed
since."""

from pathlib import Path

import pytest

from agentevolver.utils.files import write_jsonl
from agentevolver.view.experiment import BadPageRequest
from agentevolver.view.trajectories import Filter, Trajectories, cursor
from tests.agentevolver.view.runs import make_records


@pytest.fixture
def trajectories(tmp_path: Path) -> Trajectories:
    for step in (1, 2, 10):
        write_jsonl(tmp_path / f"step_{step}.jsonl", make_records(step, 2))
    (tmp_path / ".step_3.jsonl.17").write_text("a draft")
    return Trajectories(tmp_path)


def test_the_newest_step_comes_first(trajectories: Trajectories) -> None:
    found = trajectories.find(Filter())
    assert [row["step"] for row in found["rows"]] == [10] * 8 + [2] * 8 + [1] * 8
    assert found["next"] is None and found["searched"] == 1


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (Filter(step=2), 8),
        (Filter(outcome="failure"), 6),
        (Filter(outcome="failed"), 6),
        (Filter(origin="synthetic"), 12),
        (Filter(guidance="guided"), 6),
        (Filter(text="K1.10"), 4),
    ],
)
def test_filters_take_what_they_say(wanted: Filter, count: int, trajectories: Trajectories) -> None:
    assert len(trajectories.find(wanted)["rows"]) == count


def test_pages_go_on_where_the_last_one_stopped(trajectories: Trajectories) -> None:
    seen: list[tuple[int, int]] = []
    before = None
    while True:
        found = trajectories.find(Filter(outcome="success"), before=before, limit=5)
        seen += [(row["step"], row["index"]) for row in found["rows"]]
        if found["next"] is None:
            break
        before = cursor(":".join(map(str, found["next"])))
    assert len(seen) == len(set(seen)) == 12


def test_a_rollout_comes_whole_and_with_its_group(trajectories: Trajectories) -> None:
    found = trajectories.one(2, 5)
    assert found["record"]["trajectory_id"] == "g2-1_1" == found["summary"]["id"]
    assert [row["rollout"] for row in found["siblings"]] == [0, 1, 2, 3]
    assert found["summary"]["guided"] and not found["summary"]["kept"]
    assert found["record"]["guidance"]["injected"] in found["record"]["messages"][1]["content"]


def test_step_credit_that_is_written_later_is_seen(trajectories: Trajectories, tmp_path: Path) -> None:
    records = list(make_records(2, 1))
    before = [{key: value for key, value in record.items() if key != "credit"} for record in records]
    write_jsonl(tmp_path / "step_2.jsonl", before)
    assert trajectories.one(2, 0)["summary"]["advantages"] == []
    write_jsonl(tmp_path / "step_2.jsonl", records)
    assert trajectories.one(2, 0)["summary"]["advantages"] == [0.5, 1.25]


def test_torn_and_strange_lines_are_passed_over(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "step_1.jsonl", make_records(1, 1))
    whole = (tmp_path / "step_1.jsonl").read_bytes()
    (tmp_path / "step_1.jsonl").write_bytes(b'{"trajectory_id": 3}\nnonsense\n' + whole[:-5])
    trajectories = Trajectories(tmp_path)
    assert [row["rollout"] for row in trajectories.step(1)] == [0, 1, 2]
    assert trajectories.one(1, 2)["record"]["rollout_id"] == 2


def test_a_cursor_is_two_numbers() -> None:
    assert cursor("") is None and cursor("80:3") == (80, 3)
    for text in ("80", "a:b", "-1:0", "1:2:3"):
        with pytest.raises(BadPageRequest):
            cursor(text)

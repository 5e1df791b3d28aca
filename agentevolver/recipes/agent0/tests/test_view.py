"""Rounds on the page: what is told of pools and manifests, whole, torn, hostile or missing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from agentevolver.recipes.agent0.view import VIEW
from agentevolver.recipes.agent0.view.rounds import LISTED, TEXT, Rounds
from agentevolver.utils.files import write_jsonl
from agentevolver.view.app import create_app, page_access
from agentevolver.view.experiment import Experiment, NotThere
from tests.agentevolver.view.runs import make_run
from tests.recipe_runs import make_rounds, proposal_record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_rounds(make_run(tmp_path / "calc" / "demo"))


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(
        create_app(Experiment(folder), page_access("127.0.0.1")), base_url="http://127.0.0.1:8600"
    ) as found:
        yield found


def test_rounds_are_told_from_the_manifest_the_pools_and_the_trainings(folder: Path) -> None:
    found = Rounds(folder).overview()
    assert found["best"] == {"round": 1, "success": 0.5, "checkpoint": "round_1/solver/c"} and found["problem"] == ""
    assert found["state"] == "running"
    base, first, second = found["rounds"]
    assert base["success"] == {"dev": {"mean": 0.25, "se": 0.05, "calls": 2.0}} and base["pool"] == {}
    assert first["rewards"] == [[1.0, 0.25], [2.0, 0.75]] and second["rewards"] == []
    assert [stage["name"] for stage in first["stages"]] == ["label", "solve", "evaluate"]
    assert first["stages"][0]["counts"] == {"drawn": 4} and first["stages"][1]["seconds"] == 3.0
    pool = first["pool"]
    assert (pool["labelled"], pool["kept"], pool["measured"]) == (4, 2, 3)
    assert pool["dropped"] == [("too_easy", 1), ("malformed", 1)]
    assert (pool["right"], pool["right_known"], pool["vote_known"]) == (0.5, 2, 3)
    assert pool["p"] == 0.5 and pool["p_measured"] == pytest.approx(2 / 3)
    assert pool["calls"] == 2.0


def test_records_are_paged_by_fate_and_reason_in_their_order(folder: Path) -> None:
    rounds = Rounds(folder)

    def numbers(**wanted: Any) -> tuple[list[int], int]:
        found = rounds.records(1, **wanted)
        return [row["number"] for row in found["rows"]], found["total"]

    assert numbers() == ([0, 1, 2, 3], 4) and numbers(offset=1, limit=2) == ([1, 2], 4)
    assert numbers(fate="kept") == ([0, 1], 2) and numbers(fate="dropped", reason="malformed") == ([3], 1)
    with pytest.raises(NotThere, match="no round 7"):
        rounds.records(7)


def test_a_pool_grows_is_torn_and_is_written_anew(folder: Path) -> None:
    rounds, path = Rounds(folder), folder / "round_1" / "pool.jsonl"
    assert rounds.overview()["rounds"][1]["pool"]["labelled"] == 4
    line = json.dumps(proposal_record(4, kept=True)).encode()
    with path.open("ab") as file:
        file.write(b'no json\n[1]\n{"number": "x"}\n' + line[:-9])
    assert rounds.overview()["rounds"][1]["pool"]["labelled"] == 4 and rounds.records(1)["total"] == 4
    with path.open("ab") as file:
        file.write(line[-9:] + b"\n")
    assert rounds.records(1, offset=4)["rows"][0]["number"] == 4
    write_jsonl(path, [proposal_record(9, kept=False)])
    assert [row["number"] for row in rounds.records(1)["rows"]] == [9]
    assert rounds.overview()["rounds"][1]["pool"]["kept"] == 0
    path.unlink()
    assert rounds.records(1) == {"rows": [], "total": 0} and rounds.overview()["rounds"][1]["pool"] == {}


def test_a_pool_that_was_read_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(folder)
    before = rounds.overview()
    monkeypatch.setattr("agentevolver.recipes.agent0.view.rounds.RoundFacts.of", None)
    assert rounds.overview() == before


def test_long_texts_and_lists_are_cut(folder: Path) -> None:
    record = proposal_record(0, kept=False, question="q" * 100_000, drop_reason="r" * 10_000)
    record |= {"votes": [[str(i) * 10_000, 1] for i in range(500)], "program": "p" * 100_000}
    write_jsonl(folder / "round_2" / "pool.jsonl", [record])
    found = Rounds(folder).records(2)
    (row,) = found["rows"]
    assert row["cut"] and len(row["question"]) == TEXT + 1 and row["question"].endswith("…")
    assert len(row["votes"]) == LISTED and row["votes_left_out"] == 500 - LISTED
    assert len(json.dumps(found)) < 20_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"rounds": [{"rou',
        b"\xff\xfe",
        b"[]",
        b'{"rounds": 3, "best": 1, "state": {}}',
        b'{"rounds": [null, {"round": "x"}, {"round": 1, "stages": [1]}, {"round": -1}]}',
        b'{"rounds": [{"round": 1, "stages": {"label": 3, "evaluate": {"metrics": {"dev": {"success": 1}}}}}]}',
        b'{"rounds": [{"round": 1, "stages": {"label": {"seconds": NaN, "reason": "\\ud800"}}}]}',
        b'{"rounds": [{"round": 1, "stages": {"label": {"counts": {"a": 1e999, "b": true}}}}]}',
        b"[" * 100_000,
    ],
)
def test_a_manifest_of_any_content_leaves_what_the_folders_hold(
    content: bytes, folder: Path, client: TestClient
) -> None:
    (folder / "coevolve.json").write_bytes(content)
    answer = client.get("/api/rounds")
    assert answer.status_code == 200
    first = next(one for one in answer.json()["rounds"] if one["round"] == 1)
    assert first["pool"]["labelled"] == 4 and first["rewards"] == [[1.0, 0.25], [2.0, 0.75]]


@pytest.mark.thorough
@pytest.mark.parametrize("value", [None, 3, [], {}, True, "x", 1e308, -(2**62), [[]], [[1, {}]]])
def test_a_record_of_any_shape_is_shown(value: Any, folder: Path, client: TestClient) -> None:
    strange = {name: value for name in proposal_record(0, kept=True)} | {"number": 0}
    write_jsonl(folder / "round_1" / "pool.jsonl", [strange])
    assert client.get("/api/rounds").json()["rounds"][1]["pool"]["labelled"] == 1
    assert len(client.get("/api/rounds/1/records").json()["rows"]) == 1


def test_a_run_without_a_manifest_has_no_rounds(folder: Path, client: TestClient) -> None:
    assert client.get("/api/state").json()["views"] == ["rounds"]
    (folder / "coevolve.json").unlink()
    assert client.get("/api/state").json()["views"] == [] and client.get("/api/rounds").json() == {"exists": False}


def test_what_is_asked_for_wrongly_is_said(client: TestClient) -> None:
    assert client.get("/api/rounds/1/records?fate=lost").status_code == 400
    assert client.get("/api/rounds/99/records").status_code == 404
    assert client.get("/api/rounds/..%2f1/records").status_code == 404
    assert client.get("/api/rounds/1/records?limit=100000").status_code == 400


def test_the_version_changes_with_pools_and_rewards(folder: Path) -> None:
    seen = set()
    for path in (None, "coevolve.json", "round_1/pool.jsonl", "round_1/proposer/metrics.jsonl"):
        if path is not None:
            with (folder / path).open("ab") as file:
                file.write(b"\n")
        seen.add(VIEW.version(folder))
    assert len(seen) == 4

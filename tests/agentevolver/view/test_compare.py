"""Several runs in one page, and what an advantage is made of."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from agentevolver.utils.files import write_jsonl
from agentevolver.view.app import create_app, page_access
from agentevolver.view.experiment import Experiment
from tests.agentevolver.view.runs import make_records, make_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    found = [make_run(tmp_path / "pocket" / name, steps=steps) for name, steps in (("one", 2), ("two", 3))]
    for seed, run in enumerate(found):
        config = {"data": {"seed": seed}, "trainer": {"save_freq": seed}, "llm": {"api_key": f"sk-secret-{seed}"}}
        (run / "config.yaml").write_text(
            yaml.safe_dump(config | ({"exp_manager": {"rollout_ratio": 0.5}} if seed else {}))
        )
    return found


@pytest.fixture
def client(runs: list[Path]) -> Iterator[TestClient]:
    app = create_app([Experiment(run) for run in runs], page_access("127.0.0.1", "t0ken"))
    with TestClient(app, base_url="http://127.0.0.1:8600") as client:
        yield client


def test_each_run_has_its_routes_and_the_first_also_the_plain_ones(client: TestClient) -> None:
    listed = client.get("/api/runs").json()
    assert [(run["name"], run["step"], run["running"]) for run in listed] == [
        ("pocket/one", 2, False),
        ("pocket/two", 3, False),
    ]
    for prefix, name in (("", "pocket/one"), ("/runs/0", "pocket/one"), ("/runs/1", "pocket/two")):
        assert client.get(f"{prefix}/api/state").json()["name"] == name
    assert client.get("/runs/2/api/state").status_code == 404
    token = {"authorization": "Bearer t0ken"}
    assert client.delete("/runs/1/api/experience/default/e1").status_code == 401
    assert client.delete("/runs/1/api/experience/default/e1", headers=token).status_code == 200
    assert [client.get(f"/runs/{i}/api/experience").json()["total"] for i in (0, 1)] == [3, 2]


def test_a_run_that_begins_later_is_there_with_the_next_look(runs: list[Path], tmp_path: Path) -> None:
    opened = [Experiment(run) for run in runs]
    app = create_app(opened, page_access("127.0.0.1"), [tmp_path / "pocket", tmp_path / "gone", runs[0]])
    with TestClient(app, base_url="http://127.0.0.1:8600") as client:

        def listed() -> list[str]:
            return [run["name"] for run in client.get("/api/runs").json()]

        assert listed() == ["pocket/one", "pocket/two"] and client.get("/runs/2/api/state").status_code == 404
        (tmp_path / "pocket" / "begins").mkdir()
        assert listed() == ["pocket/one", "pocket/two"], "it has no configuration yet"
        make_run(tmp_path / "pocket" / "a_third", steps=1)
        assert listed() == ["pocket/one", "pocket/two", "pocket/a_third"], "numbers stay"
        assert client.get("/runs/2/api/state").json()["name"] == "pocket/a_third"
        assert client.get("/runs/2/api/trajectories/training/steps").json() == [1]
        for wrong in ("3", "x", "-1", "\u0661", ""):
            assert client.get(f"/runs/{wrong}/api/state").status_code == 404
        for number in range(40):
            (made := tmp_path / "pocket" / f"run_{number}").mkdir()
            (made / "config.yaml").touch()
        assert len(listed()) == 3, "more than can be shown"


def test_the_advantage_of_each_turn_is_explained(runs: list[Path], client: TestClient) -> None:
    first, last = client.get("/api/trajectories/training/2/2").json()["explained"]
    assert (first["outcome"], first["label"], first["later"], first["advantage"]) == (0.0, 0.75, -1.25, -0.5)
    assert (last["outcome"], last["label"], last["later"], last["scale"]) == (-1.0, -0.25, 0.0, None)
    assert client.get("/api/trajectories/training/2/3").json()["explained"] == []
    records = list(make_records(2, 1))
    records[0]["credit"] = {"advantages": [1.0], "parts": {"outcome": [1.0]}}
    write_jsonl(runs[0] / "trajectories" / "step_2.jsonl", records)
    assert client.get("/api/trajectories/training/2/0").json()["explained"] == []

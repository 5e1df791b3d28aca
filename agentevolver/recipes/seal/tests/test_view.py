"""Weaknesses of the closed loop on the page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from agentevolver.utils.files import write_json
from agentevolver.view.app import create_app, page_access
from agentevolver.view.experiment import Experiment
from tests.agentevolver.view.runs import HOSTILE, make_run
from tests.recipe_runs import make_loop


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "pocket" / "demo")


@pytest.fixture
def client(run: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Experiment(run), page_access("127.0.0.1")), base_url="http://127.0.0.1:8600") as found:
        yield found


def test_weaknesses_are_those_of_the_newest_checkpoint_and_of_each_round(run: Path, client: TestClient) -> None:
    assert client.get("/api/tasks/weaknesses").json() == []
    make_loop(run)
    (found,) = client.get("/api/tasks/weaknesses").json()
    assert found["environment"] == "pocket" and found["step"] == 10 and found["signals"]["forgotten"] == 1
    (weakness,) = found["weaknesses"]
    assert (weakness["name"], weakness["count"], weakness["worlds"]) == ("note.del · wrong_argument", 4, 1)
    assert weakness["examples"][0]["words"] == f"no such note {HOSTILE}"
    assert [(one["number"], one["failed"]) for one in found["rounds"]] == [(1, False), (2, True)]


@pytest.mark.parametrize("value", [None, 3, [], {}, "x", {"rounds": 3}, {"rounds": [3, {}, {"weaknesses": [None, 1]}]}])
def test_a_record_of_another_shape_disturbs_nothing(value: Any, run: Path, client: TestClient) -> None:
    make_loop(run)
    write_json(run / "tasks" / "rounds" / "rounds.json", value)
    write_json(run / "checkpoints" / "global_step_11" / "closed_loop.json", {"pocket": value})
    assert client.get("/api/tasks/weaknesses").status_code == 200
    (run / "checkpoints" / "global_step_11" / "closed_loop.json").write_text("{")
    assert client.get("/api/tasks/weaknesses").status_code == 200

"""Ratings of self-play on the page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from agentevolver.view.app import create_app, page_access
from agentevolver.view.experiment import Experiment
from tests.agentevolver.view.runs import make_run
from tests.recipe_runs import make_self_play


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "pocket" / "demo")


@pytest.fixture
def client(run: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Experiment(run), page_access("127.0.0.1")), base_url="http://127.0.0.1:8600") as found:
        yield found


def test_ratings_of_self_play_are_told_without_folders(client: TestClient, run: Path) -> None:
    assert client.get("/api/self_play").json() == {}
    make_self_play(run)
    told = client.get("/api/self_play").json()
    assert (told["step"], told["elo"], len(told["members"])) == (3, 1064.4, 2)
    assert told["members"][0] == {"name": "start", "elo": 1000.0, "games": 24}
    for broken in ("", "[1]", '{"members": [3, null]}', '{"members": "x"}'):
        (run / "self_play.json").write_text(broken)
        found = client.get("/api/self_play")
        assert found.status_code == 200 and not found.json().get("members")

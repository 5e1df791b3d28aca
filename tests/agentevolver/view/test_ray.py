"""Ray's dashboard on the page: what it says, and whom the page lets in."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from agentevolver.utils.web.owner import OPEN_RAY, is_owner_key, owner_key, ray_link
from agentevolver.view import ray as ray_module
from agentevolver.view.app import create_app, page_access
from agentevolver.view.experiment import Experiment
from agentevolver.view.ray import RAY_COOKIE, RayCluster
from tests.agentevolver.view.runs import make_run

pytestmark = pytest.mark.service
TOKEN = "f00d" * 16


def summary(groups: dict[str, Any]) -> Any:
    found = {name: {"class_name": name, "state_counts": counts} for name, counts in groups.items()}
    return {"data": {"result": {"result": {"node_id_to_summary": {"cluster": {"summary": found}}}}}}


ANSWERS: dict[str, Any] = {
    "/api/v0/actors/summarize": summary({"WorkerDict": {"ALIVE": 1}, "Host": {"ALIVE": 2, "DEAD": 1}, "x": 3}),
    "/api/v0/tasks/summarize": summary({"generate": {"FINISHED": 9, "PENDING_NODE_ASSIGNMENT": 2}}),
    "/nodes?view=summary": {
        "data": {"summary": [{"raylet": {"objectStoreUsedMemory": 1e8, "objectStoreAvailableMemory": 4e8}}, 3]}
    },
}


@pytest.fixture
def dashboard() -> Iterator[str]:
    """A server that answers as Ray's dashboard does, to who has the token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            may = self.headers["authorization"] == f"Bearer {TOKEN}"
            self.send_response(200 if may else 401)
            self.end_headers()
            self.wfile.write(json.dumps(ANSWERS[self.path] if may else {}).encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dashboard: str) -> Path:
    """A run that goes on, with a Ray cluster of its own."""
    run = make_run(tmp_path / "pocket" / "demo", steps=1)
    registry = tmp_path / "registry"
    registry.mkdir()
    (run / "launches" / "261121-000000-abcd.json").write_text('{"run_id": "r1", "started_at": "2026"}')
    (registry / "r1.json").write_text(json.dumps({"run_id": "r1", "dashboard": dashboard}))
    (registry / "r1.token").write_text(TOKEN)
    monkeypatch.setattr(ray_module, "REGISTRY", registry)
    monkeypatch.setattr(RayCluster.__init__, "__defaults__", (registry,))
    monkeypatch.setattr(Experiment, "processes", lambda _: {1})
    return run


def client_of(run: Path, host: str = "127.0.0.1", **options: Any) -> TestClient:
    app = create_app(Experiment(run), page_access(host, "a-token"))
    return TestClient(app, base_url="http://127.0.0.1:8600", follow_redirects=False, **options)


def test_actors_calls_and_the_store_are_told(run: Path, dashboard: str) -> None:
    with client_of(run) as client:
        told = client.get("/api/ray").json()
    assert told["address"] == dashboard and told["problem"] == "" and not told["may_open"]
    assert told["actors"] == [
        {"name": "Host", "states": {"ALIVE": 2, "DEAD": 1}},
        {"name": "WorkerDict", "states": {"ALIVE": 1}},
    ]
    assert told["tasks"] == [{"name": "generate", "states": {"FINISHED": 9, "PENDING_NODE_ASSIGNMENT": 2}}]
    assert told["nodes"] == [{"store_used_gb": 0.1, "store_gb": 0.5}]
    assert TOKEN not in json.dumps(told)


def test_the_link_of_the_terminal_lets_its_owner_in_and_nobody_else(run: Path, dashboard: str) -> None:
    link = ray_link("http://127.0.0.1:8600", ray_module.REGISTRY / "r1.token")
    assert link is not None and TOKEN not in link
    with client_of(run) as client:
        for wrong in (OPEN_RAY, f"{OPEN_RAY}?key=", f"{OPEN_RAY}?key={TOKEN}", f"{OPEN_RAY}?key=ü"):
            answer = client.get(wrong)
            assert answer.status_code == 403 and "set-cookie" not in answer.headers, wrong
        answer = client.get(link)
        assert answer.status_code == 303 and answer.headers["location"].rstrip("/") == dashboard
        cookies = answer.headers.get_list("set-cookie")
        assert any(cookie.startswith(f"{RAY_COOKIE}={TOKEN};") for cookie in cookies)
        assert all("HttpOnly" in cookie and "samesite=strict" in cookie.lower() for cookie in cookies)
        # From then on the page shows the link itself.
        assert client.get("/api/ray").json()["may_open"] and client.get(OPEN_RAY).status_code == 303


def test_from_elsewhere_nobody_is_let_in(run: Path) -> None:
    key = owner_key(ray_module.REGISTRY / "r1.token")
    with client_of(run, "0.0.0.0", headers={"host": "example.org"}) as client:
        answer = client.get(f"{OPEN_RAY}?key={key}", headers={"authorization": "Bearer a-token"})
        assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_a_run_that_is_over_has_no_cluster(run: Path) -> None:
    (ray_module.REGISTRY / "r1.token").unlink()
    with client_of(run) as client:
        assert "does not answer" in client.get("/api/ray").json()["problem"]
        (ray_module.REGISTRY / "r1.json").unlink()
        assert client.get("/api/ray").json() == {"may_open": False}
        assert client.get(OPEN_RAY).status_code == 404


def test_no_key_follows_from_an_empty_or_missing_token(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        assert owner_key(path) is None and ray_link("http://x", path) is None
        assert not is_owner_key("", path) and not is_owner_key("None", path)

"""Requests that schemathesis draws from the schemas of the page and the experience service: no crash, errors in the
server's own form, and nothing is done without the token. The environment service has `test_openapi_fuzz`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agentevolver.view.runs import make_plan
from tests.servers import SERVERS, TOKEN, all_apps, all_sockets

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (requirements/dev.lock)")

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

# What is there, so that a request gets further than to a 404.
REAL = {
    "kind": "training",
    "step": 1,
    "index": 1,
    "number": 1,
    "journal": "tasks_explored.train.jsonl.d",
    "run": make_plan().run,
    "workspace": "default",
    "identifier": "e1",
    "name": "main.log",
    "workspace_id": "default",
}
HOSTILE = [dict.fromkeys(REAL, text) for text in ("../../etc/passwd", "a\x00b", "9" * 30, "<script>")]


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    async def made() -> dict[str, dict[str, Any]]:
        async with all_apps(tmp_path_factory.mktemp("schemas")) as apps:
            return {name: one.documented.openapi() for name, one in apps.items()}

    return asyncio.run(made())


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    with all_sockets(Path(tmp_path_factory.mktemp("served"))) as ports:
        yield ports


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("name", [name for name in SERVERS if name in ("page", "reme")])
def test_requests_drawn_from_the_schema_are_answered_as_they_may_be(
    name: str, mode: str, schemas: dict[str, dict[str, Any]], ports: dict[str, int]
) -> None:
    schema = schemathesis.openapi.from_dict(schemas[name])
    drawn = [
        found.ok().as_strategy(generation_mode=schemathesis.GenerationMode(mode))
        for found in schema.get_all_operations()
    ]
    statuses = set()

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.one_of(drawn), st.sampled_from([REAL, REAL, {}, *HOSTILE]), st.sampled_from([TOKEN, TOKEN, "wrong", None])
    )
    def answers_as_it_may(case: Any, put: dict[str, Any], token: str | None) -> None:
        for part in (case.path_parameters, case.query, case.body):
            if isinstance(part, dict):
                part.update({key: value for key, value in put.items() if key in part})
        headers = {"authorization": f"Bearer {token}"} if token else {}
        response = case.call(base_url=f"http://127.0.0.1:{ports[name]}", session=session, headers=headers, timeout=30)
        statuses.add(response.status_code)
        assert response.status_code < 500 or response.status_code in (503, 504), response.text
        assert "Traceback" not in response.text
        is_open = case.path in ("/healthz", "/health") or (name == "page" and case.method in ("GET", "HEAD"))
        assert token == TOKEN or is_open or response.status_code >= 300, "served without the token"
        if response.status_code >= 400 and response.content:
            assert "detail" in response.json()

    with requests.Session() as session:
        session.trust_env = False
        answers_as_it_may()
    assert mode == "negative" or 200 in statuses

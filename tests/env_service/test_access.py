"""Who may talk to the service."""

from __future__ import annotations

import os

import pytest
from local_hosts import Http, serving

from env_service.http.app import take_token
from env_service.http.routes import MANY, ROUTES


async def test_with_a_token_every_route_but_health_needs_it() -> None:
    async with serving(token="right") as running:
        for given in (None, "righ", "right2"):
            async with Http(running.url, given) as http:
                assert (await http.get("/healthz"))[0] == 200
                for path in (*ROUTES, *MANY, "/nowhere"):
                    assert (await http.post(path, {"task_id": "t1"}))[0] == 401, path
                for path in ("/metrics", "/instances", "/openapi.json", "/docs"):
                    assert (await http.get(path))[0] == 401, path
        assert not running.service.instances
        async with Http(running.url, "right") as http:
            assert (await http.post("/create", {"task_id": "t1"}))[0] == 200
            assert (await http.get("/metrics"))[0] == 200


def test_the_token_leaves_the_environment_so_that_no_child_inherits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_SERVICE_TOKEN", "abc")
    assert take_token("0.0.0.0") == "abc"
    assert "ENV_SERVICE_TOKEN" not in os.environ

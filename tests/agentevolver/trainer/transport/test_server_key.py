from __future__ import annotations

import importlib
from argparse import Namespace
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentevolver.utils import run_key

PATHS = (
    "/health",
    "/metrics",
    "/v1/models",
    "/collective_rpc",
    "/healthy",
    "/metrics/all",
)


async def answer(_: Request) -> PlainTextResponse:
    return PlainTextResponse("answered")


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


def build_app(args: Namespace, supported_tasks: Any = None) -> Starlette:
    app = Starlette(
        routes=[*(Route(path, answer, methods=["GET", "POST"]) for path in PATHS), WebSocketRoute("/v1/realtime", talk)]
    )
    for name in args.middleware:
        module, _, attribute = name.rpartition(".")
        app.add_middleware(getattr(importlib.import_module(module), attribute))
    return app


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(run_key, "key", lambda: bytes(32))
    server = cast(ModuleType, SimpleNamespace(build_app=build_app))
    run_key.install_server_key(server)
    return TestClient(server.build_app(Namespace(middleware=[]), supported_tasks=()))


def statuses(client: TestClient, **headers: str) -> dict[str, int]:
    return {path: client.request("POST", path, headers=headers).status_code for path in PATHS}


def test_without_the_key_only_health_and_counters_answer(client: TestClient) -> None:
    closed = {path: 200 if path in ("/health", "/metrics") else 401 for path in PATHS}
    assert statuses(client) == closed
    assert statuses(client, authorization="Bearer wrong") == closed
    assert statuses(client, authorization=f"Basic {run_key.server_key()}") == closed
    assert client.get("/v1/models").json() == {"error": "this server asks for the key of its run"}
    assert client.request("OPTIONS", "/v1/models").status_code == 401
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
        pass


def test_with_the_key_everything_answers(client: TestClient) -> None:
    key = {"authorization": f"Bearer {run_key.server_key()}"}
    assert set(statuses(client, **key).values()) == {200}
    with client.websocket_connect("/v1/realtime", headers=key):
        pass


def test_two_authorisations_are_none(client: TestClient) -> None:
    twice = httpx.Headers([("authorization", f"Bearer {run_key.server_key()}"), ("authorization", "Bearer wrong")])
    assert client.get("/v1/models", headers=twice).status_code == 401

"""Requests that schemathesis draws from our own OpenAPI schema, half of them bent to real names: documented answers, no
crash, no leak.

Whatever a caller sends to these environments ends in an observation or a refusal, so no request may be answered with a
5xx but 503 (full, stopping) and 504 (too slow).
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import requests as requests_library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray_service import Served, leaking_nothing, start, stop

from env_service.client import EnvClient
from env_service.http.routes import MANY, ROUTES
from env_service.registry import known_environments
from tests.free_ports import free_port

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (requirements/dev.lock)")

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

EXAMPLES = {"positive": 80, "negative": 40}
CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
LISTINGS = ("/healthz", "/metrics", "/instances")
NAMES = ("counter", *sorted({"calc", "pocket"} & known_environments().keys()))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One service for all operations; what it holds is counted before the first and after the last."""
    names = [part for name in NAMES for part in ("--env", name)]
    counter = ("--env-module", "counter=counter_envs:Counter")
    service = start(free_port(), *names, *counter, "--max-instances", "32", "--warm", "2", "--shared-hosts", "1")
    service.wait_until_healthy(300)
    with leaking_nothing(service):
        yield service
    stop(service)


@pytest.fixture(autouse=True)
def real(served: Served) -> Iterator[dict[str, list[Any]]]:
    """Open an instance of each environment under its name, give values of fields that mean something here, and release
    afterwards whatever is open."""
    with EnvClient(served.url) as client:
        tasks = {name: client.get_env_profile(name)[:3] for name in NAMES}
        for name in NAMES:
            client.create_instance(name, tasks[name][0], name)
        yield {
            "env_type": [*NAMES],
            "task_id": [task for known in tasks.values() for task in known],
            "instance_id": [*NAMES],
            "messages": [{"role": "assistant", "content": action} for action in ("1", "done", "note.list home")],
            "params": [{}, {"split": "train"}, {"is_open_query": True}, {"sparse": False}],
            "step_index": [0, 1],
        }
        for facts in json.loads(urllib.request.urlopen(f"{served.url}/instances").read())["data"]:
            client.release_instance(facts["instance_id"])


def bent(requests: st.SearchStrategy[Any], real: dict[str, list[Any]]) -> st.SearchStrategy[Any]:
    """Put real values in place of some fields of the drawn requests."""
    choices = st.fixed_dictionaries({}, optional={field: st.sampled_from(values) for field, values in real.items()})

    def bend(case: Any, chosen: list[dict[str, Any]]) -> Any:
        for body, values in zip(_bodies(case.body), chosen, strict=False):
            body.update(values)
        return case

    return st.builds(bend, requests, st.lists(choices, min_size=1, max_size=4))


def _bodies(body: Any) -> list[dict[str, Any]]:
    if not isinstance(body, dict):
        return []
    return [item for item in body["requests"] if isinstance(item, dict)] if "requests" in body else [body]


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [("POST", path, mode) for path in (*ROUTES, *MANY) for mode in EXAMPLES]
    + [("GET", path, "positive") for path in LISTINGS],
)
def test_requests_drawn_from_the_schema_are_answered_as_it_says(
    served: Served, real: dict[str, list[Any]], method: str, path: str, mode: str
) -> None:
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    requests = schema[path][method].as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @settings(max_examples=EXAMPLES[mode], deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(bent(requests, real) if mode == "positive" else requests)
    def answers_as_documented(case: Any) -> None:
        response = case.call(session=session)
        assert response.status_code < 500 or response.status_code in (503, 504), (case.body, response.text)
        # A body that is drawn too large is refused for that, by a status that this check does not know.
        too_large = [check for check in checks if check.__name__ == "negative_data_rejection"]
        case.validate_response(
            response, checks=checks, excluded_checks=too_large if response.status_code == 413 else None
        )

    with requests_library.Session() as session:
        answers_as_documented()

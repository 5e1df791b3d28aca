"""Where a whole run listens while it trains, and what somebody is told there who has none of its keys: the list is
closed."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Finished

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# (process, protocol): what a peer without a credential is told.
BESIDE_RAY = {
    ("ray::TransferQueueController", "zmtp"): {"closed"},  # CURVE with the run's key
    ("ray::SimpleStorageUnit", "zmtp"): {"closed"},
    ("ray::vLLMHttpServer", "http"): {"401"},  # the run's key
    ("ray::RuntimeEnvAgent", "http"): {"401"},  # Ray's token
    ("ray::DashboardAgent", "http"): {"401", "counters"},  # Ray's token; a port of its own for Prometheus
    ("dashboard.py", "http"): {"counters"},
    ("env_service", "http"): {"404", "401"},  # ENV_SERVICE_TOKEN where there is one
    # Stores and groups of torch's ask for nothing: loopback is the wall.
    ("ray::WorkerDict", "other"): {""},
    ("VLLM::EngineCore", "other"): {""},
}


def test_a_run_listens_on_loopback_alone(basic_run: Finished) -> None:
    assert {one.ip for one in basic_run.heard} == {"127.0.0.1"}, basic_run.heard
    assert {one.process for one in basic_run.heard} >= {
        "gcs_server",
        "raylet",
        "ray::TransferQueueController",
        "ray::vLLMHttpServer",
    }


def test_who_has_no_key_of_the_run_is_refused_and_nothing_else_listens(basic_run: Finished) -> None:
    for one, said in basic_run.heard.items():
        if one.protocol == "grpc":  # GCS, raylet, agents, workers and drivers, by Ray's token
            assert said == "UNAUTHENTICATED", one
        else:
            assert said in BESIDE_RAY.get((one.process, one.protocol), ()), f"{one} told a stranger {said!r}"
    assert {one.process for one in basic_run.heard if one.protocol == "zmtp"} == {
        "ray::TransferQueueController",
        "ray::SimpleStorageUnit",
    }


def test_the_policys_server_tells_strangers_only_how_it_is(basic_run: Finished) -> None:
    opened = {path for path, statuses in basic_run.routes.items() if statuses != {401}}
    assert opened == {"/health", "/metrics"}, basic_run.routes

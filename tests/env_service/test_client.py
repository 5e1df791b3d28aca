"""Both clients: what they return, which failure becomes which type, and that only what is safe to repeat is
repeated."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from local_hosts import COUNTER, say, serving
from scripted_server import CUT, reply, scripted

from env_service.client import (
    AsyncEnvClient,
    EnvClient,
    EnvCrashed,
    EnvRequestError,
    EnvServiceError,
    EnvTimeout,
    EnvUnavailable,
    RetryPolicy,
)

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
FAST = RetryPolicy(tries=4, base_s=0.001, cap_s=0.005, budget_s=5.0)
INIT = {"state": [{"role": "user", "content": "go"}], "info": {}}
STEP = {"state": [{"role": "user", "content": "1"}], "reward": 0.0, "is_terminated": False, "info": {}}


class Blocking:
    """The blocking client behind the async one's interface, so that one test serves both."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = EnvClient(*arguments, **options)

    async def __aenter__(self) -> Blocking:
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._client.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *arguments, **options)

        return call


both = pytest.mark.parametrize("client_class", [AsyncEnvClient, Blocking])


@both
async def test_an_episode_through_the_client(client_class: Any) -> None:
    async with serving() as running, client_class(running.url) as client:
        assert await client.health() is True
        assert await client.get_env_profile("counter", split="val") == ["t0", "t1"]
        created = await client.create_instance("counter", "t1", "a")
        assert created["info"]["instance_id"] == "a"
        assert (await client.step("a", say(5), step_index=0))["reward"] == 0.0
        assert (await client.step("a", say(5), step_index=0))["info"]["calls"] == 1
        assert (await client.step("a", say(5)))["is_terminated"] is True
        assert await client.evaluate("a", params={"sparse": False}) == 1.0
        assert (await client.get_tools_info("a", messages=[say(1)]))["messages"] == 1
        assert await client.release_instance("a") is True
        assert await client.release_instance("a") is False


@both
async def test_safe_requests_are_repeated_after_a_cut_connection(client_class: Any) -> None:
    calls = [
        ("get_env_profile", ("counter",), reply(["t"])),
        ("create_instance", ("counter", "t1"), reply(INIT)),
        ("step", ("a", say(1), None, 0), reply(STEP)),
        ("evaluate", ("a",), reply(0.5)),
        ("get_tools_info", ("a",), reply({})),
        ("release_instance", ("a",), reply()),
    ]
    for name, arguments, answer in calls:
        async with scripted(CUT, CUT, answer) as server, client_class(server.url, retry=FAST) as client:
            await getattr(client, name)(*arguments)
            first, second, third = server.requests
            assert first[2] == second[2] == third[2]
            assert first[1].get("idempotency-key") == third[1].get("idempotency-key")
            assert ("idempotency-key" in first[1]) == (name == "create_instance")


@both
async def test_a_step_without_a_number_is_never_repeated_once_it_may_have_been_carried_out(client_class: Any) -> None:
    async with scripted(CUT) as server, client_class(server.url, retry=FAST) as client:
        with pytest.raises(EnvUnavailable, match="may have been carried out") as caught:
            await client.step("a", say(1))
        assert caught.value.instance_id == "a" and caught.value.url.endswith("/step")


@both
async def test_503_is_repeated_even_for_a_step_without_a_number_and_respects_retry_after(client_class: Any) -> None:
    full = reply(status=503, headers={"Retry-After": "1"}, detail="busy", code="unavailable")
    async with scripted(full, reply(STEP)) as server, client_class(server.url, retry=FAST) as client:
        started = time.monotonic()
        await client.step("a", say(1))
        assert time.monotonic() - started >= 1


FAILURES = [
    (reply(status=404, detail="Not Found"), EnvRequestError),
    (reply(status=422, detail=[{"msg": "no"}], code="invalid_body"), EnvRequestError),
    (reply(status=500, detail="no", code="instance_lost", error_id="e1"), EnvCrashed),
    (reply(status=504, detail="no", code="timeout", error_id="e1"), EnvTimeout),
    ((500, b"<html>", {}), EnvCrashed),
    ((200, b"not json", {}), EnvCrashed),
    ((200, b"[]", {}), EnvCrashed),
]


@both
@pytest.mark.parametrize(("answer", "kind"), FAILURES)
async def test_every_failure_has_its_type_is_not_repeated_and_says_what_where_and_what_to_do(
    client_class: Any, answer: Any, kind: type[EnvServiceError]
) -> None:
    async with scripted(answer) as server, client_class(server.url, retry=FAST) as client:
        with pytest.raises(EnvServiceError) as caught:
            await client.step("abc", say(1), step_index=0)
        error = caught.value
        assert type(error) is kind
        assert (error.method, error.url, error.instance_id) == ("POST", f"{server.url}/step", "abc")
        assert "POST" in str(error) and "abc" in str(error) and server.url in str(error)
        if isinstance(answer[1], dict) and "error_id" in answer[1]:
            assert error.error_id == "e1" and "create a new one" in str(error)


@both
async def test_nobody_listening_is_unavailable_and_says_how_to_start_a_service(client_class: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with client_class(url, retry=FAST) as client:
        assert await client.health() is False
        with pytest.raises(EnvUnavailable, match="python -m env_service serve"):
            await client.step("a", say(1))


@both
async def test_an_unknown_instance_that_this_client_created_was_lost_others_are_a_mistake(client_class: Any) -> None:
    gone = reply(status=400, detail="unknown", code="unknown_instance")
    async with (
        scripted(reply(INIT), gone, gone, reply(), gone) as server,
        client_class(server.url, retry=FAST) as client,
    ):
        await client.create_instance("counter", "t1", "mine")
        with pytest.raises(EnvCrashed, match="create a new one"):
            await client.step("mine", say(1))
        with pytest.raises(EnvRequestError):
            await client.step("other", say(1))
        await client.release_instance("mine")
        with pytest.raises(EnvRequestError):
            await client.step("mine", say(1))


@both
async def test_the_token_is_sent_from_the_argument_or_the_environment(
    client_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(COUNTER, token="right") as running:
        async with client_class(running.url, token="right", retry=FAST) as client:
            assert await client.get_env_profile("counter")
        async with client_class(running.url, token="wrong", retry=FAST) as client:
            with pytest.raises(EnvRequestError, match="ENV_SERVICE_TOKEN"):
                await client.get_env_profile("counter")
        monkeypatch.setenv("ENV_SERVICE_TOKEN", "right")
        async with client_class(running.url, retry=FAST) as client:
            assert await client.get_env_profile("counter")


async def test_the_documented_client_runs_against_the_pocket_world() -> None:
    async with serving({"pocket": "env_service.environments.pocket.env:PocketEnv"}) as running:
        (code,) = re.findall(r"```python\n(import asyncio.*?)```", (ROOT / "docs/env_service.md").read_text(), re.S)
        command = [sys.executable, "-c", code.replace("http://127.0.0.1:8080", running.url)]
        result = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert not running.service.instances

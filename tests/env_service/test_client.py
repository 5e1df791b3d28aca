"""Both clients: what they return, which failure becomes which type, and that only what is safe to repeat is
repeated."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from typing import Any

import pytest
from local_hosts import COUNTER, say, serving
from scripted_server import CUT, SILENCE, losing_replies, reply, scripted

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
from env_service.protocol import Repeat, Schedule

pytestmark = pytest.mark.service

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


def test_both_clients_have_the_same_methods_and_signatures() -> None:
    names = [
        name
        for name, value in vars(AsyncEnvClient).items()
        if inspect.iscoroutinefunction(value) and not name.startswith("_")
    ]
    assert len(names) >= 8
    for name in names:
        assert inspect.signature(getattr(EnvClient, name)) == inspect.signature(getattr(AsyncEnvClient, name)), name


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
            assert len(server.requests) == 3


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
        assert time.monotonic() - started >= 0.45


@both
async def test_a_create_keeps_its_id_and_key_over_its_tries(client_class: Any) -> None:
    async with scripted(CUT, reply(INIT)) as server, client_class(server.url, retry=FAST) as client:
        await client.create_instance("counter", "t1")
        (_, first_headers, first), (_, second_headers, second) = server.requests
        assert first == second and len(first["instance_id"]) == 32
        assert first_headers["idempotency-key"] == second_headers["idempotency-key"]


@both
async def test_replies_that_the_network_lost_are_fetched_again_and_nothing_is_done_twice(client_class: Any) -> None:
    async with (
        serving() as running,
        losing_replies(running.url, every=2) as url,
        client_class(url, retry=FAST) as client,
    ):
        created = await client.create_instance("counter", "t1")
        name = created["info"]["instance_id"]
        for index in range(4):
            result = await client.step(name, say(1), step_index=index)
            assert result["info"]["calls"] == index + 1
        assert await client.evaluate(name) == 0.4
        assert list(running.service.instances) == [name]
        await client.release_instance(name)
        assert not running.service.instances


FAILURES = [
    (reply(status=400, detail="no", code="bad_request"), EnvRequestError),
    (reply(status=401, detail="no", code="unauthorized"), EnvRequestError),
    (reply(status=404, detail="Not Found"), EnvRequestError),
    (reply(status=409, detail="no", code="step_out_of_order"), EnvRequestError),
    (reply(status=413, detail="no", code="body_too_large"), EnvRequestError),
    (reply(status=422, detail=[{"msg": "no"}], code="invalid_body"), EnvRequestError),
    (reply(status=500, detail="no", code="env_error", error_id="e1"), EnvCrashed),
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
async def test_a_server_that_stays_full_is_unavailable_after_a_bounded_number_of_tries(client_class: Any) -> None:
    full = reply(status=503, detail="full", code="full")
    async with scripted(full, full, full, full) as server, client_class(server.url, retry=FAST) as client:
        with pytest.raises(EnvUnavailable, match="max-instances") as caught:
            await client.create_instance("counter", "t1")
        assert (caught.value.status, caught.value.code) == (503, "full")
        assert len(server.requests) == FAST.tries


@both
async def test_silence_is_a_timeout(client_class: Any) -> None:
    async with scripted(SILENCE) as server, client_class(server.url, retry=FAST, timeout_s=0.2) as client:
        with pytest.raises(EnvTimeout, match=r"no answer within 0\.2 s"):
            await client.step("a", say(1))


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


@both
async def test_what_json_cannot_hold_is_a_request_error_before_anything_is_sent(client_class: Any) -> None:
    async with scripted() as server, client_class(server.url, retry=FAST) as client:
        with pytest.raises(EnvRequestError, match="not JSON"):
            await client.step("a", {"role": "assistant", "content": "x", "extra": object()})
        assert not server.requests


def test_waits_grow_with_full_jitter_and_stop_at_the_budget() -> None:
    policy = RetryPolicy(tries=100, base_s=1.0, cap_s=4.0, budget_s=30.0)
    error = EnvUnavailable("x", repeat=Repeat.ALWAYS)
    for attempt in range(1, 6):
        waits = []
        for _ in range(200):
            schedule = Schedule(policy, safe=True)
            for _ in range(attempt):
                wait = schedule.wait_s(error)
            assert wait is not None
            waits.append(wait)
        ceiling = min(4.0, 2.0**attempt)
        assert max(waits) <= ceiling and max(waits) > 0.8 * ceiling and min(waits) < 0.2 * ceiling
    assert (
        Schedule(RetryPolicy(budget_s=0.0), safe=True).wait_s(
            EnvUnavailable("x", repeat=Repeat.ALWAYS, retry_after_s=5)
        )
        is None
    )
    assert Schedule(policy, safe=False).wait_s(EnvUnavailable("x", repeat=Repeat.IF_SAFE)) is None


async def test_hundreds_of_episodes_share_one_client() -> None:
    async with serving() as running, AsyncEnvClient(running.url, max_connections=64) as client:

        async def episode(number: int) -> float:
            created = await client.create_instance("counter", "t1")
            name = created["info"]["instance_id"]
            for index in range(5):
                await client.step(name, say(number % 3), step_index=index)
            score = await client.evaluate(name)
            assert await client.release_instance(name)
            return score

        scores = await asyncio.gather(*(episode(number) for number in range(300)))
        assert scores == [min(10, 5 * (number % 3)) / 10 for number in range(300)]
        assert not running.service.instances


async def test_a_lone_clients_steps_are_not_held_back_by_the_network() -> None:
    async with serving() as running, AsyncEnvClient(running.url) as client:
        await client.create_instance("counter", "t1", "a")
        times = []
        for _ in range(30):
            started = time.perf_counter()
            await client.step("a", say(0))
            times.append(time.perf_counter() - started)
        assert sorted(times)[15] < 0.02, "a delayed acknowledgement would cost 40 ms"

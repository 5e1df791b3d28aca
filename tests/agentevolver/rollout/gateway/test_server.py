"""What an agent may do to the gateway: each is an answer below 500 (or 503), in JSON, and nobody else notices."""

import asyncio
import gzip
import json
import time

import aiohttp
import openai
import pytest

from agentevolver.rollout.gateway.rollout import CallLimits
from agentevolver.rollout.gateway.server import GatewayServer, ServerLimits
from agentevolver.utils import seeds
from experience_manager.guide import Injection
from tests.agentevolver.rollout.gateway.harness import ScriptedEngine, rollout, user

pytestmark = pytest.mark.service

BODY = {"model": "policy", "messages": [user("go")]}


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http, url, body=BODY, **options):
    """Status and body of an answer; the body is JSON whatever happens."""
    data = {"json": body} if "data" not in options else {}
    async with http.post(url, **data, **options) as response:
        return response.status, json.loads(await response.read())


async def raw(port, *parts, pause=0.0):
    """What the server sends to somebody who sends these bytes, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(pause)
    found = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return found


async def test_each_rollout_has_its_own_address(renderer, server, http):
    first, second = rollout(renderer), rollout(renderer)
    ours, others = server.open(first), server.open(second)
    assert (await post(http, f"{ours.base_url}/chat/completions"))[0] == 200
    assert (first.calls, second.calls) == (1, 0)
    root = f"http://127.0.0.1:{server.port}"
    for headers in ({"Authorization": f"Bearer {others.api_key}"}, {"x-api-key": others.api_key}):
        assert (await post(http, f"{root}/v1/chat/completions", headers=headers))[0] == 200
    assert (first.calls, second.calls) == (1, 2)
    guessed = others.base_url.replace(others.api_key, others.api_key[:-1] + ("A" if others.api_key[-1] == "-" else "-"))
    assert (await post(http, f"{guessed}/chat/completions"))[0] == 404
    assert (await post(http, f"{root}/v1/chat/completions"))[0] == 401
    assert (await post(http, f"{ours.base_url}/../../{others.api_key}/x"))[0] == 404


async def test_a_call_after_the_end_is_a_conflict_and_then_nobody_is_there(renderer, http):
    server = GatewayServer(limits=ServerLimits(closed_s=0.2))
    await server.start()
    endpoint = server.open(rollout(renderer))
    server.close(endpoint)
    status, body = await post(http, f"{endpoint.base_url}/chat/completions")
    assert status == 409 and body["error"]["code"] == "rollout_ended"
    await asyncio.sleep(0.25)
    assert (await post(http, f"{endpoint.base_url}/chat/completions"))[0] == 404
    await server.stop()


async def test_a_client_that_goes_away_takes_its_call_along(renderer, server):
    engine = ScriptedEngine(["one"], gate=asyncio.Event())
    played = rollout(renderer, engine)
    endpoint = server.open(played)
    async with aiohttp.ClientSession() as session:
        waiting = asyncio.create_task(post(session, f"{endpoint.base_url}/chat/completions"))
        while not engine.waiting:
            await asyncio.sleep(0.01)
        waiting.cancel()
    while engine.waiting:
        await asyncio.sleep(0.01)
    engine.gate.set()
    async with aiohttp.ClientSession() as session:
        assert (await post(session, f"{endpoint.base_url}/chat/completions"))[0] == 200
    assert played.calls == 1 and len(played.steps) == 1


async def test_a_body_of_50_mb_is_refused_before_it_is_read(renderer, server, http):
    endpoint = server.open(rollout(renderer))
    path = endpoint.base_url.partition(str(server.port))[2] + "/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {50 * 2**20}\r\n\r\n"
    before = time.perf_counter()
    assert b" 413 " in await raw(server.port, head.encode() + b"{")
    assert time.perf_counter() - before < 5
    big = {**BODY, "messages": [user("x" * 50 * 2**20)]}
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key="x", max_retries=0) as client:
        with pytest.raises((openai.APIStatusError, openai.APIConnectionError)) as refused:
            await client.chat.completions.create(**big)
    assert getattr(refused.value, "status_code", 413) == 413
    chunked = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode()
    parts = [b"%x\r\n%s\r\n" % (2**20, b"x" * 2**20)] * 9
    assert b" 413 " in await raw(server.port, chunked, *parts)
    assert (await post(http, f"{endpoint.base_url}/chat/completions"))[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"data": b"{"}, 400),
        ({"data": b'{"messages": "\\ud800"}'}, 400),
        ({"data": b"[" * 100_000}, 400),
        ({"data": gzip.compress(b"{}"), "headers": {"Content-Encoding": "gzip"}}, 400),
        ({"body": BODY, "headers": {"Host": "evil.example"}}, 421),
        ({"body": BODY, "headers": {"Origin": "http://evil.example"}}, 403),
        ({"body": {"messages": []}}, 400),
    ],
)
async def test_what_is_no_request_is_refused_in_json(renderer, server, http, sent, status):
    played = rollout(renderer)
    endpoint = server.open(played)
    found, body = await post(http, f"{endpoint.base_url}/chat/completions", **sent)
    assert found == status and body["error"]["message"] and not played.calls


async def test_a_hundred_calls_at_once(renderer, server, http):
    engine = ScriptedEngine(["one"])
    played = rollout(renderer, engine, call_limits=CallLimits(calls=80))
    endpoint = server.open(played)
    bodies = [{"messages": [user(f"task {number}")]} for number in range(100)]
    answers = await asyncio.gather(*[post(http, f"{endpoint.base_url}/chat/completions", body) for body in bodies])
    assert sorted(status for status, _ in answers) == [200] * 80 + [403] * 20
    assert played.calls == played.chains == 80
    assert len(played.samples()) == 8 and played.dropped == {"over_max_samples": 72}
    assert played.stop_reason == "max_steps"


async def test_what_is_done_for_a_rollout_is_done_in_its_own_context(renderer, http):
    """Not in that of whoever started the server, nor in that of the request."""
    seen = []

    class Engine(ScriptedEngine):
        async def generate(self, *arguments):
            seen.append(seeds.current().run_seed)
            return await super().generate(*arguments)

    async def guide(opening):
        seen.append(seeds.current().run_seed)
        return Injection(opening, opening)

    with seeds.drawing(1, "another"):
        server = GatewayServer()
        await server.start()
    with seeds.drawing(2, "ours"):
        endpoint = server.open(rollout(renderer, Engine(), guide=guide))
    assert (await post(http, f"{endpoint.base_url}/chat/completions"))[0] == 200
    assert seen == [2, 2]
    await server.stop()

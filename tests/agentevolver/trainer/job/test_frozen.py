from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentevolver.rollout.engine import EngineError
from agentevolver.trainer.job.frozen import Checkpoints
from agentevolver.trainer.job.frozen_engine import FrozenEngine
from agentevolver.utils.retry import BackoffPolicy
from tests.tiny_model import build

# ---- checkpoints by turns ----


class Engine:
    """vLLM's engine and application: answers with the checkpoint that is loaded, after `seconds`."""

    def __init__(self, start: str) -> None:
        self.loaded = Path(start).name
        self.loads: list[str] = []
        self.errored = False
        self.inside = 0
        self.seconds = 0.01

    async def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights" and self.inside == 0, "weights change between requests alone"
        self.loaded = ""
        await asyncio.sleep(0.01)
        name = Path(kwargs["weights_path"]).name
        self.loads.append(name)
        if name == "torn":
            raise ValueError("a tensor is missing")
        self.loaded = name

    async def reset_prefix_cache(self) -> bool:
        return True

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        asked = orjson.loads((await receive())["body"])
        assert "model" not in asked
        self.inside += 1
        await asyncio.sleep(self.seconds)
        self.inside -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.loaded.encode()})


class Served:
    def __init__(self, folder: Path) -> None:
        self.start = str(build(folder / "start"))
        self.engine = Engine(self.start)
        self.served = Checkpoints(self.engine.app, self.engine, self.start)

    async def ask(self, body: Any, path: str = "/v1/completions") -> tuple[int, str]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body if isinstance(body, bytes) else orjson.dumps(body)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        method = "GET" if path == "/healthz" else "POST"
        await self.served({"type": "http", "method": method, "path": path}, receive, send)
        return sent[0]["status"], sent[1]["body"].decode()

    async def of(self, checkpoint: Any) -> tuple[int, str]:
        return await self.ask({"model": str(checkpoint), "prompt": [1]})


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


async def test_a_request_is_answered_by_the_checkpoint_that_it_names(served: Served, tmp_path: Path) -> None:
    one, other = build(tmp_path / "one"), build(tmp_path / "other")
    assert await served.of(served.start) == (200, "start") and served.engine.loads == []
    names = [one, other, one, served.start, other, one]
    assert await asyncio.gather(*map(served.of, names)) == [(200, Path(name).name) for name in names]
    loads = len(served.engine.loads)
    last = tmp_path / served.engine.loaded
    assert await asyncio.gather(*(served.of(last) for _ in range(5))) == [(200, last.name)] * 5
    assert len(served.engine.loads) == loads
    build(last)
    assert await served.of(last) == (200, last.name) and len(served.engine.loads) == loads + 1, "written anew"


async def test_a_checkpoint_that_cannot_be_loaded_is_refused_and_the_next_one_is_served(
    served: Served, tmp_path: Path
) -> None:
    wider, torn = build(tmp_path / "wider", hidden_size=128), build(tmp_path / "torn")
    for checkpoint, said in (
        (wider, "another architecture than .*: hidden_size is 128, not 64"),
        (tmp_path / "none", "no model's config.json"),
        (torn, "could not be loaded: a tensor is missing"),
    ):
        status, text = await served.of(checkpoint)
        assert status == 409 and re.search(said, json.loads(text)["detail"])
    assert await served.of(served.start) == (200, "start") and served.engine.loads == ["torn", "start"]
    for body in (b"{", b"[]", b'{"prompt": [1]}'):
        assert (await served.ask(body))[0] == 400


# ---- the client ----

QUICK = BackoffPolicy(tries=3, first_wait_s=0.01, max_wait_s=0.01)


def reply(ids: list[int], reason: str = "stop") -> tuple[int, Any]:
    return 200, {"choices": [{"token_ids": ids, "finish_reason": reason}]}


@asynccontextmanager
async def asking(*answers: tuple[int, Any], **options: Any) -> AsyncIterator[tuple[FrozenEngine, list[Any]]]:
    """Yield a client of a server that gives these answers, and what the server was asked."""
    asked: list[Any] = []
    left = list(answers)

    async def answer(request: web.Request) -> web.Response:
        asked.append({**await request.json(), "key": request.headers.get("Authorization")})
        status, body = left.pop(0)
        if status == 0:
            await asyncio.sleep(5)
        return web.json_response(body, status=status or 200)

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        given = {"max_model_len": 10, "timeout_s": 5.0, "key": "right", "patience": QUICK, **options}
        engine = FrozenEngine(url, "/base", **given)
        try:
            yield engine, asked
        finally:
            await engine.close()


@pytest.mark.service
async def test_a_reply_is_the_sampled_ids_and_a_request_says_all_of_the_sampling() -> None:
    async with asking(reply([5, 6, 1]), (500, {}), (503, {}), reply([7], "length")) as (engine, asked):
        sampling = {"temperature": 0.5, "seed": 9, "logprobs": True, "stop": ["x"]}
        generated = await engine.generate("i", [1, 2, 3], sampling)
        assert (generated.ids, len(generated.log_probs)) == ([5, 6, 1], 3)
        assert (await engine.generate("i", [1, 2], {"max_tokens": 3})).ids == [7], "asked again while it is away"
    expected = {"temperature": 0.5, "seed": 9, "stop": ["x"], "max_tokens": 7, "prompt": [1, 2, 3], "model": "/base"}
    assert asked[0] == {**expected, "return_token_ids": True, "key": "Bearer right"}
    assert [one["max_tokens"] for one in asked] == [7, 3, 3, 3]


@pytest.mark.service
@pytest.mark.parametrize(
    ("answers", "prompt", "said"),
    [
        ([(409, {"detail": "another architecture"})], 3, "checkpoint /base: HTTP 409 .*another architecture"),
        ([(0, {})], 3, "no reply within 0 s"),
        ([(200, {"choices": []})], 3, "no completion"),
    ],
)
async def test_what_is_no_reply_is_an_engine_error(answers: list[Any], prompt: int, said: str) -> None:
    async with asking(*answers, timeout_s=0.3) as (engine, _):
        with pytest.raises(EngineError, match=said):
            await engine.generate("i", [1] * prompt, {})

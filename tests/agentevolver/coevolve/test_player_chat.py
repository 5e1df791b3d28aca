"""Frozen policies reply to conversations: rendered as in training, by the weights that are asked for, over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentevolver.coevolve.player.chat import FrozenChat
from agentevolver.coevolve.player.client import PlayerRefused, PlayerUnavailable, PlayFailed
from agentevolver.coevolve.player.weights import folder_of
from agentevolver.engine import EngineError, Generated
from context_manager.chat import ChatRenderer, PlainTokenizer
from env_service.chat_endpoint import EndpointFailed, complete
from tests.agentevolver.coevolve.models import write_model
from tests.agentevolver.coevolve.players import served

TALK = [{"role": "system", "content": "rules"}, {"role": "user", "content": "your turn"}]


class NamedEngine:
    """Says which weights it has, and counts what it is asked."""

    def __init__(self) -> None:
        self.loaded, self.loads, self.dead, self.error = "", 0, False, ""
        self.tokenizer = PlainTokenizer()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def check(self, name: str) -> None:
        if folder_of(name).name == "other":
            raise PlayerRefused("of another architecture")

    async def load(self, name: str) -> None:
        await asyncio.sleep(0.01)
        self.loaded, self.loads = folder_of(name).name, self.loads + 1

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        holds = self.loaded
        self.asked.append((self.tokenizer.decode(prompt_ids), sampling_params))
        await asyncio.sleep(0.01)
        if self.error:
            raise EngineError(self.error)
        assert holds == self.loaded, "weights were changed while a reply was sampled"
        ids = self.tokenizer.encode(f"by {holds}")
        return Generated(ids, [0.0] * len(ids), 0, 0)


def made(tmp_path: Path) -> tuple[FrozenChat, NamedEngine]:
    for name in ("start", "step_10", "other"):
        write_model(tmp_path / name)
    engine = NamedEngine()
    return FrozenChat(engine, ChatRenderer(PlainTokenizer()), {"temperature": 1.0}, 7, 1000, None, 4), engine


async def test_each_is_answered_by_the_weights_it_asked_for(tmp_path: Path) -> None:
    chat, engine = made(tmp_path)
    wanted = ["start", "step_10"] * 4
    said = await asyncio.gather(*(chat.reply(tmp_path / name, TALK, seed) for seed, name in enumerate(wanted)))
    assert [text.strip() for text in said] == [f"by {name}" for name in wanted] and engine.loads == 2
    assert all("rules" in prompt and "your turn" in prompt for prompt, _ in engine.asked)
    sampled = sorted((sampling for _, sampling in engine.asked), key=lambda sampling: sampling["seed"])
    assert sampled == [{"temperature": 1.0, "max_tokens": 7, "seed": seed} for seed in range(8)]
    await chat.reply(tmp_path / "start", TALK)
    assert "seed" not in engine.asked[-1][1]


async def test_a_conversation_that_leaves_no_room_is_answered_with_nothing(tmp_path: Path) -> None:
    chat, engine = made(tmp_path)
    long = [*TALK, {"role": "assistant", "content": "x" * 4000}, TALK[1]]
    assert await chat.reply(tmp_path / "start", long) == "" and engine.asked == []


async def test_what_cannot_be_replied_to_is_an_error_of_its_kind(tmp_path: Path) -> None:
    chat, engine = made(tmp_path)
    for name, match in (("other", "another architecture"), ("none", "is not there")):
        with pytest.raises(PlayerRefused, match=match):
            await chat.reply(tmp_path / name, TALK)
    engine.error = "no reply within 600 s"
    with pytest.raises(PlayFailed, match="no reply within"):
        await chat.reply(tmp_path / "start", TALK)
    engine.dead = True
    with pytest.raises(PlayerUnavailable, match="has ended"):
        await chat.reply(tmp_path / "start", TALK)


@pytest.mark.service
async def test_an_environment_asks_over_http_as_any_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    chat, engine = made(tmp_path)
    async with served(None, token="s3cret", chat=chat) as url:
        body = {"model": str(tmp_path / "start"), "messages": TALK, "seed": 3}
        message = await asyncio.to_thread(complete, f"{url}/v1", "s3cret", body)
        assert message["role"] == "assistant" and message["content"].strip() == "by start"
        for wrong in (
            {"model": ""},
            {"messages": []},
            {"tools": []},
            {"seed": "x"},
        ):
            with pytest.raises(EndpointFailed, match="HTTP 400"):
                await asyncio.to_thread(complete, f"{url}/v1", "s3cret", {**body, **wrong})
        with pytest.raises(EndpointFailed, match="HTTP 409"):
            await asyncio.to_thread(complete, f"{url}/v1", "s3cret", {**body, "model": str(tmp_path / "other")})
        with pytest.raises(EndpointFailed, match="HTTP 401"):
            await asyncio.to_thread(complete, f"{url}/v1", None, body)
        engine.error = "gone"
        with pytest.raises(EndpointFailed, match="HTTP 503"):
            await asyncio.to_thread(complete, f"{url}/v1", "s3cret", body)
        async with httpx.AsyncClient(headers={"Authorization": "Bearer s3cret"}) as client:
            assert (await client.post(f"{url}/play", json={})).status_code == 404, "in self-play nobody plays episodes"

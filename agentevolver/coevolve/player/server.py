"""HTTP server of the player: `POST /play` or `POST /v1/chat/completions`, and `GET /healthz`.

`/play` takes `{"checkpoint", "task", "n", "name", "validation"}` and answers `{"plays": [...]}`. What cannot be asked
is 400, what cannot be played (weights of another model) 409, an episode that failed 503 with its reason; 503 with
`Retry-After` says that this server stops and another one follows. A caller that goes away takes its episodes with it.

`/v1/chat/completions` is what seats of games ask in self-play: a part of OpenAI's API (`model`, which is a folder of
weights, `messages`, `seed`), with the same statuses.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentevolver.coevolve.player.chat import FrozenChat
from agentevolver.coevolve.player.client import PLAYER_TOKEN, Player, PlayerError, PlayerRefused, PlayFailed
from agentevolver.types import Task
from agentevolver.utils.health import PLAYER, health_facts
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.shield import Shield, answer_errors

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)
_TASK = TypeAdapter(Task)
# A task is a question and its parameters.
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_EPISODES = 1024
BACK_IN_S = 2


class Asked(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    checkpoint: Annotated[str, Field(min_length=1, max_length=4096)]
    task: dict[str, Any]
    n: Annotated[int, Field(ge=1, le=MAX_EPISODES)]
    name: Annotated[str, Field(min_length=1, max_length=1000)]
    validation: bool = False

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Read a body; raises ValueError."""
        return _read(cls, body)


class Said(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class AskedToReply(BaseModel):
    """The body of a request for a reply."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[str, Field(min_length=1, max_length=4096)]
    messages: Annotated[list[Said], Field(min_length=1)]
    seed: int | None = None

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Read a body; raises ValueError."""
        return _read(cls, body)


def _read(kind: type[Body], body: bytes) -> Body:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}") from error


def read_task(data: dict[str, Any]) -> Task:
    """Read a task as a caller sends it; raises ValueError for what is none."""
    try:
        Task.from_dict(data)  # a field that a task does not have
        task = _TASK.validate_json(orjson.dumps(data), strict=True)
    except TypeError as error:
        raise ValueError(f"task: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"task.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if not task.task_id or not task.env_type:
        raise ValueError("task.task_id and task.env_type must not be empty")
    if not isinstance(task.metadata.get("env_params", {}), dict):
        raise ValueError("task.metadata.env_params must be an object")
    return task


def make_app(
    player: Player | None,
    *,
    chat: FrozenChat | None = None,
    access: Access | None = None,
    status: Callable[[], str] = lambda: "ok",
) -> FastAPI:
    """Return the server behind its shield.

    Args:
        player: plays; None: no episodes are played.
        chat: replies; None: nobody is replied to.
        access: who may ask; None: everybody on this machine.
        status: how the server is: `ok`, or anything else for one that stops.
    """
    app = FastAPI(title="agentevolver player", docs_url=None, redoc_url=None)
    rules = access or Access("127.0.0.1", variable=PLAYER_TOKEN)
    app.add_middleware(Shield, access=rules, body_bytes=MAX_BODY_BYTES, check_json=False)
    answer_errors(app)

    if player is not None:
        _offer_plays(app, player)
    if chat is not None:
        _offer_replies(app, chat)

    @app.get("/healthz")
    async def _healthz() -> Response:
        found = status()
        return _json(200 if found == "ok" else 503, health_facts(PLAYER, status=found))

    return app


def _offer_plays(app: FastAPI, player: Player) -> None:
    @app.post("/play")
    async def _play(request: Request) -> Response:
        try:
            asked = Asked.read(await request.body())
            task = read_task(asked.task)
        except ValueError as error:
            return _said(400, str(error))
        playing = player.play(Path(asked.checkpoint), task, asked.n, asked.name, asked.validation)
        try:
            plays = await _while_connected(request, playing)
        except PlayerError as error:
            return _failed(error)
        return _json(200, {"plays": list(plays)})


def _offer_replies(app: FastAPI, chat: FrozenChat) -> None:
    @app.post("/v1/chat/completions")
    async def _reply(request: Request) -> Response:
        try:
            asked = AskedToReply.read(await request.body())
        except ValueError as error:
            return _said(400, str(error))
        messages = [message.model_dump() for message in asked.messages]
        try:
            text = await _while_connected(request, chat.reply(asked.model, messages, asked.seed))
        except PlayerError as error:
            return _failed(error)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        about = {"id": uuid.uuid4().hex, "object": "chat.completion", "created": int(time.time()), "model": asked.model}
        return _json(200, {**about, "choices": [choice]})


def _failed(error: PlayerError) -> Response:
    """Return the status of what the player raised."""
    if isinstance(error, PlayerRefused):
        return _said(409, str(error))
    again = None if isinstance(error, PlayFailed) else {"retry-after": str(BACK_IN_S)}
    return _said(503, str(error), again)


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, and cancel it when the caller goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise asyncio.CancelledError("the caller went away")
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _said(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return _json(status, {"detail": detail}, headers)


def _json(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, "application/json")

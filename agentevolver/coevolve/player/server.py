"""HTTP server of the player: `POST /play` and `GET /healthz`.

`/play` takes `{"checkpoint", "task", "n", "name", "validation"}` and answers `{"plays": [...]}`. What cannot be asked
is 400, what cannot be played (weights of another model) 409, an episode that failed 503 with its reason; 503 with
`Retry-After` says that this server stops and another one follows. A caller that goes away takes its episodes with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentevolver.coevolve.player.client import PLAYER_TOKEN, Player, PlayerError, PlayerRefused, PlayFailed
from agentevolver.types import Task
from agentevolver.utils.health import PLAYER, health_facts
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import Limits
from agentevolver.utils.web.shield import Shield, answer_errors

T = TypeVar("T")
_TASK = TypeAdapter(Task)
# A task is a question and its parameters.
MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_EPISODES = 1024
BACK_IN_S = 2

LIMITS = Limits(body_bytes=MAX_BODY_BYTES)


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
        try:
            return cls.model_validate_json(body)
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


def make_app(player: Player, *, access: Access | None = None, status: Callable[[], str] = lambda: "ok") -> FastAPI:
    """Return the server behind its shield.

    Args:
        player: plays.
        access: who may ask; None: everybody on this machine.
        status: how the server is: `ok`, or anything else for one that stops.
    """
    app = FastAPI(title="agentevolver player", docs_url=None, redoc_url=None)
    rules = access or Access("127.0.0.1", variable=PLAYER_TOKEN)
    app.add_middleware(Shield, access=rules, body_bytes=MAX_BODY_BYTES, check_json=False)
    answer_errors(app)

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
        except PlayerRefused as error:
            return _said(409, str(error))
        except PlayFailed as error:
            return _said(503, str(error))
        except PlayerError as error:
            return _said(503, str(error), {"retry-after": str(BACK_IN_S)})
        return _json(200, {"plays": list(plays)})

    @app.get("/healthz")
    async def _healthz() -> Response:
        found = status()
        return _json(200 if found == "ok" else 503, health_facts(PLAYER, status=found))

    return app


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

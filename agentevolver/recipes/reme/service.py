"""ReMe service: the experience pool over HTTP, for clients of ReMe 0.1 to 0.3.

    POST /summary_task_memory /retrieve_task_memory /record_task_memory /delete_task_memory /vector_store   GET /health

A reply is `{answer, success: true, metadata}`. A failure is a status with `{"detail": one line}`: 400 for the caller's
mistake, 401 without the token, 503 if a model or the store fails. An error text is never an answer, because clients put
answers into prompts. Files are read and written in `--dump-dir` alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from agentevolver.llm.embeddings import Encoder, EncoderUnavailable
from agentevolver.recipes.reme.bodies import (
    DeleteBody,
    RecordBody,
    RemeAnswer,
    RetrieveBody,
    SummaryBody,
    TrajectoryBody,
    VectorStoreBody,
)
from agentevolver.recipes.reme.messages import from_messages
from agentevolver.utils.health import EXPERIENCE, health_facts
from agentevolver.utils.names import system_name
from agentevolver.utils.web.access import Access
from agentevolver.utils.web.server import WebServer, server_config
from agentevolver.utils.web.shield import Shield, answer_errors
from experience_manager.attempts import PastAttempt, group_by_task
from experience_manager.distill import Distiller
from experience_manager.dumps import DumpError, read_dump, write_dump
from experience_manager.errors import ExperienceError, UnknownExperience
from experience_manager.experience import Experience, RecordError, from_reme, to_reme
from experience_manager.pool import Pool
from experience_manager.question import Question
from experience_manager.retrieve import Retriever
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Count, Store

if TYPE_CHECKING:
    from agentevolver.llm import LLM

logger = logging.getLogger(__name__)
MAX_BODY_BYTES = 64 * 1024 * 1024
# AgentEvolver's client sends the opening messages with their guidance.
_GUIDANCE = re.compile(r"\A.*?<EXP>.*?</EXP>\s*", re.DOTALL)


class BadRemeRequest(ExperienceError):
    pass


class ExperienceService:
    def __init__(
        self,
        settings: ExperienceSettings,
        store: Store,
        encoder: Encoder,
        llm: LLM,
        *,
        author: str = "",
        dump_dir: Path | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._encoder = encoder
        self._llm = llm
        self._distiller = Distiller(llm, settings.distillation, author=author)
        self._dump_dir = dump_dir

    async def summary(self, body: SummaryBody) -> RemeAnswer:
        pool = self._pool(body.workspace_id)
        attempts = [self._attempt(trajectory) for trajectory in body.trajectories]
        groups = (
            [attempts]
            if self._settings.distils_whole_steps
            else group_by_task(attempts, self._settings.summary_batch_size)
        )
        distilled = await asyncio.gather(*(self._distiller.distil(group) for group in groups))
        counts = sum((result.counts for result in distilled), Counter[str]())
        found = [experience for result in distilled for experience in result.experiences]
        if not found and (counts["failed_extraction"] or counts["failed_validation"]):
            problem = next((result.problem for result in distilled if result.problem), "its replies were of no use")
            raise ExperienceError(f"the summariser failed, nothing was stored: {problem}")
        added = await asyncio.to_thread(pool.add, found)
        ids = dict.fromkeys(added.ids)
        memories = await asyncio.to_thread(
            lambda: [to_reme(self._store.get(pool.workspace, identifier)) for identifier in ids]
        )
        update = {"deleted_count": 0, "inserted_count": added.inserted, "joined_count": added.joined}
        metadata = {"memory_list": memories, "update_result": update, "counts": dict(counts)}
        return RemeAnswer(answer=json.dumps(memories, ensure_ascii=False), metadata=metadata)

    async def retrieve(self, body: RetrieveBody) -> RemeAnswer:
        """Return guidance for a task; the answer is empty if there is none."""
        question = self._question(body)
        retriever = Retriever(self._pool(body.workspace_id), self._settings, self._llm)
        found = await retriever.retrieve(question, body.top_k)
        memories = [to_reme(e) | {"similarity": s} for e, s in zip(found.experiences, found.similarities, strict=True)]
        return RemeAnswer(answer=found.text, metadata={"memory_list": memories, "notes": list(found.notes)})

    async def record(self, body: RecordBody) -> RemeAnswer:
        """Count one use of each memory, and one success if `update_utility`. Unknown memories are inserted first."""
        pool = self._pool(body.workspace_id)
        memories = [_memory(data, pool.workspace) for data in body.memory_dicts]
        return await asyncio.to_thread(self._record, pool, memories, body.update_utility)

    async def delete(self, body: DeleteBody) -> RemeAnswer:
        """Delete memories with freq >= freq_threshold and utility/freq < utility_threshold. Pinned ones stay."""
        count = await asyncio.to_thread(
            self._store.prune,
            self._workspace(body.workspace_id),
            min_uses=body.freq_threshold,
            min_utility=body.utility_threshold,
            min_lift=None,
        )
        return RemeAnswer(metadata={"update_result": {"deleted_count": count, "inserted_count": 0}})

    async def vector_store(self, body: VectorStoreBody) -> RemeAnswer:
        workspace = self._workspace(body.workspace_id)
        result = await asyncio.to_thread(self._store_action, body, workspace)
        return RemeAnswer(metadata={"action_result": result})

    def _record(self, pool: Pool, memories: list[Experience], success: bool) -> RemeAnswer:
        known = self._store.known(pool.workspace, [e.id for e in memories])
        new = {e.id: e for e in memories if e.id not in known}
        pool.put(list(new.values()))
        times = Counter(e.id for e in memories)
        pool.count({i: Count(uses=n, successes=n if success else 0) for i, n in times.items()})
        written = [to_reme(self._store.get(pool.workspace, identifier)) for identifier in times]
        return RemeAnswer(
            metadata={"memory_list": written, "update_result": {"deleted_count": 0, "inserted_count": len(new)}}
        )

    def _store_action(self, body: VectorStoreBody, workspace: str) -> Any:
        pool = self._pool(workspace)
        if body.action == "list":
            return [to_reme(e) for e in self._store.records(workspace)]
        if body.action == "delete":
            return {"size": self._store.delete(workspace)}
        if body.action == "delete_ids":
            return {"size": self._store.delete(workspace, body.memory_ids)}
        if body.action == "copy":
            if not body.src_workspace_id:
                raise BadRemeRequest("copy needs src_workspace_id")
            return {"size": len(pool.put(self._store.records(body.src_workspace_id)).ids)}
        file = self._dump_file(body.path, workspace)
        if body.action == "dump":
            return {"size": write_dump(file, self._store.each(workspace)), "path": file.name}
        return {"size": len(pool.replace_all(read_dump(file, workspace)).ids)}

    def _dump_file(self, path: str, workspace: str) -> Path:
        if self._dump_dir is None:
            raise BadRemeRequest("dump and load are off: start the service with --dump-dir FOLDER")
        base = self._dump_dir.resolve()
        file = (base / path / f"{system_name(workspace)}.jsonl").resolve()
        if not file.is_relative_to(base):
            raise BadRemeRequest(f"{path!r} is outside of the service's dump folder")
        return file

    def _attempt(self, body: TrajectoryBody) -> PastAttempt:
        messages = [dict(message) for message in body.messages]
        query = str(body.metadata.get("query") or "")
        threshold = self._settings.success_threshold
        for message in messages:
            if message["role"] == "assistant":
                break
            if isinstance(message.get("content"), str):
                message["content"] = _GUIDANCE.sub("", message["content"])
        return from_messages(
            messages,
            body.score,
            success_threshold=1.0 if threshold is None else threshold,
            task_id=body.task_id,
            query=_GUIDANCE.sub("", query),
        )

    def _question(self, body: RetrieveBody) -> Question:
        messages = body.messages or _messages_in(body.query) or []
        if not messages and not body.query.strip():
            raise BadRemeRequest("query or messages must say what to retrieve for")
        facts = body.metadata
        if not messages:
            opening = str(facts.get("opening") or "")
            messages = [{"role": "system", "content": opening}] if opening else []
            messages.append({"role": "user", "content": body.query})
        query = body.query if body.messages and body.query.strip() else None
        return Question(
            str(facts.get("task_id") or ""), tuple(messages), query, validation=bool(facts.get("validation"))
        )

    def _workspace(self, name: str) -> str:
        return name or self._settings.reme.workspace_id

    def _pool(self, workspace: str) -> Pool:
        return Pool.of(self._settings, self._store, self._encoder, self._workspace(workspace))


def create_app(service: ExperienceService, access: Access) -> FastAPI:
    app = FastAPI(title="Experience service", docs_url=None, redoc_url=None)
    routes: Mapping[str, Callable[..., Awaitable[RemeAnswer]]] = {
        "summary_task_memory": service.summary,
        "retrieve_task_memory": service.retrieve,
        "record_task_memory": service.record,
        "delete_task_memory": service.delete,
        "vector_store": service.vector_store,
    }
    for path, handler in routes.items():
        app.post(f"/{path}", response_model=RemeAnswer)(handler)
    app.get("/health")(_health)
    app.add_middleware(Shield, access=access, body_bytes=MAX_BODY_BYTES)
    answer_errors(app)

    @app.exception_handler(ExperienceError)
    @app.exception_handler(EncoderUnavailable)
    async def failed(_: Request, error: Exception) -> Response:
        status = 400 if isinstance(error, BadRemeRequest | DumpError | UnknownExperience) else 503
        if status == 503:
            logger.warning("%s", error)
        return JSONResponse({"detail": str(error)}, status_code=status)

    return app


async def _health() -> dict[str, Any]:
    return health_facts(EXPERIENCE)


def _memory(data: Mapping[str, Any], workspace: str) -> Experience:
    try:
        return from_reme(data, workspace)
    except RecordError as error:
        raise BadRemeRequest(f"memory_dicts: {error}") from error


def _messages_in(query: str) -> list[dict[str, Any]] | None:
    """Return the messages if the query is a JSON list of them (AgentEvolver's client sends that), else None."""
    if not query.lstrip().startswith("["):
        return None
    try:
        messages = json.loads(query)
    except json.JSONDecodeError:
        return None
    known = isinstance(messages, list) and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages)
    return messages if known else None


# Seconds for requests in flight after a stop.
STOP_S = 10


def serve(app: FastAPI, host: str, port: int, *, on_exit: Callable[[], Awaitable[None]]) -> None:
    """Serve until SIGINT or SIGTERM; raises ExperienceError if the port cannot be bound."""
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)
    server = WebServer(server_config(app, host=host, port=port, stop_s=STOP_S))
    try:
        asyncio.run(_serve(server, on_exit))
    except SystemExit as error:
        raise ExperienceError(f"{host}:{port} cannot be bound; give another --port") from error


async def _serve(server: uvicorn.Server, on_exit: Callable[[], Awaitable[None]]) -> None:
    try:
        await server.serve()
    finally:
        await on_exit()

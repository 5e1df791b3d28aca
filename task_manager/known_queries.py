"""Known queries: kept tasks and evaluation tasks, which no new task may repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from agentevolver.llm.embeddings import Encoder
from agentevolver.utils.names import system_name
from agentevolver.utils.vectors import VectorIndex, Vectors
from env_service.protocol import Instances
from task_manager.dedup import LexicalIndex
from task_manager.graders.base import opening_of
from task_manager.journal import PipelineJournal, fingerprint
from task_manager.settings import DeduplicationSettings

# Batch size for embeddings.
BLOCK = 1024


@dataclass(frozen=True, slots=True)
class DuplicateQuery:
    kind: Literal["lexical", "semantic"]
    against: Literal["pool", "evaluation"]
    query: str
    similarity: float

    def __str__(self) -> str:
        what = "an evaluation task" if self.against == "evaluation" else "a kept task"
        return f"{self.kind} similarity {self.similarity:.3f} to {what}: {self.query}"


class _Index:
    def __init__(self, jaccard: float) -> None:
        self.queries: list[str] = []
        self._lexical = LexicalIndex(jaccard)
        self._semantic: VectorIndex | None = None

    def add(self, queries: Sequence[str], vectors: Vectors) -> None:
        self._semantic = self._semantic or VectorIndex(vectors.shape[1])
        self._semantic.add(vectors)
        self.queries += queries
        for query in queries:
            self._lexical.add(query)

    def clash(
        self, query: str, vector: Vectors, cosine: float, against: Literal["pool", "evaluation"]
    ) -> DuplicateQuery | None:
        match = self._lexical.find(query)
        if match is not None:
            return DuplicateQuery("lexical", against, self.queries[match.row], match.similarity)
        for row, similarity in self._nearest(vector, 1):
            if similarity >= cosine:
                return DuplicateQuery("semantic", against, self.queries[row], similarity)
        return None

    def nearest(self, vector: Vectors, k: int) -> list[str]:
        return [self.queries[row] for row, _ in self._nearest(vector, k)]

    def _nearest(self, vector: Vectors, k: int) -> list[tuple[int, float]]:
        if self._semantic is None:
            return []
        rows, similarities = self._semantic.search(vector, k, np.ones(len(self._semantic), dtype=np.bool_))
        return list(zip(rows.tolist(), similarities.tolist(), strict=True))


class KnownQueries:
    """Kept and evaluation queries. `evaluation`: queries that must not be trained on."""

    def __init__(self, settings: DeduplicationSettings, encoder: Encoder, evaluation: Sequence[str] = ()) -> None:
        self._cosine = settings.cosine
        self._encoder = encoder
        self._kept, self._held_out = _Index(settings.jaccard), _Index(settings.jaccard)
        if evaluation:
            self._held_out.add(evaluation, encoder.encode(evaluation))

    def __len__(self) -> int:
        return len(self._kept.queries)

    async def load(self, queries: Sequence[str]) -> None:
        """Add queries without comparing them."""
        for start in range(0, len(queries), BLOCK):
            some = queries[start : start + BLOCK]
            self._kept.add(some, await self._embed(some))

    async def clash(self, query: str) -> DuplicateQuery | None:
        """Return the known query that this one duplicates, or None."""
        return self._clash(query, await self._embed([query]))

    async def take(self, query: str) -> DuplicateQuery | None:
        """Add a new query; return the known query if it is a duplicate, else None."""
        vectors = await self._embed([query])
        # No await between comparing and adding: of two equal proposals in flight, one is kept.
        found = self._clash(query, vectors)
        if found is None:
            self._kept.add([query], vectors)
        return found

    async def neighbours(self, text: str, k: int) -> list[str]:
        if not len(self) or k == 0:
            return []
        return self._kept.nearest((await self._embed([text]))[0], k)

    def _clash(self, query: str, vectors: Vectors) -> DuplicateQuery | None:
        held_out = self._held_out.clash(query, vectors[0], self._cosine, "evaluation")
        return held_out or self._kept.clash(query, vectors[0], self._cosine, "pool")

    async def _embed(self, queries: Sequence[str]) -> Vectors:
        return await asyncio.to_thread(self._encoder.encode, queries)


AT_ONCE = 16


async def held_out_queries(
    client: Instances,
    env_type: str,
    splits: Sequence[str],
    journal: PipelineJournal,
    *,
    list_params: Mapping[str, Any] | None = None,
    env_params: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Return the queries of all tasks in some splits, in order, without duplicates."""
    ids = [
        task_id
        for split in splits
        for task_id in await client.get_env_profile(env_type, split, dict(list_params or {}))
    ]
    # Environments list ids only. A task's query is in its opening, so each task is opened once and cached in the
    # journal.
    slots = asyncio.Semaphore(AT_ONCE)

    async def read(task_id: str) -> str:
        key = fingerprint({"env_type": env_type, "task_id": task_id, "params": dict(env_params or {})})
        known = journal.get("query", key)
        if known is None:
            async with slots:
                known = await _asked(client, env_type, task_id, dict(env_params or {}))
            if journal.get("query", key) is None:
                journal.put("query", key, known)
        return str(known)

    return tuple(dict.fromkeys(await asyncio.gather(*(read(task_id) for task_id in dict.fromkeys(ids)))))


async def _asked(client: Instances, env_type: str, task_id: str, env_params: dict[str, Any]) -> str:
    instance_id = f"{system_name(task_id)}-h-{uuid4().hex}"
    try:
        made = await client.create_instance(env_type, task_id, instance_id, env_params)
    finally:
        await asyncio.shield(client.release_instance(instance_id))
    info = made.get("info", {})
    told = info.get("query") or info.get("instruction")
    return str(told) if told else str(opening_of(made["state"])[-1]["content"])

"""Known queries: kept tasks and evaluation tasks, which no new task may repeat."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from agentevolver.llm.embeddings import Encoder, Vectors
from agentevolver.utils.names import system_name
from env_service.protocol import Instances
from task_manager.dedup import LexicalIndex, SemanticIndex, words
from task_manager.graders.base import opening_of
from task_manager.journal import PipelineJournal, fingerprint
from task_manager.settings import DeduplicationSettings

ALL_WORLDS = ""
# Batch size for embeddings.
BLOCK = 1024


@dataclass(frozen=True, slots=True)
class DuplicateQuery:
    """The known query that a new one duplicates."""

    kind: Literal["lexical", "semantic"]
    against: Literal["pool", "evaluation"]
    query: str
    similarity: float

    def __str__(self) -> str:
        what = "an evaluation task" if self.against == "evaluation" else "a kept task"
        return f"{self.kind} similarity {self.similarity:.3f} to {what}: {self.query}"


class _Index:
    def __init__(self, jaccard: float, corpus: Sequence[str] = ()) -> None:
        self.queries: list[str] = []
        self._lexical = LexicalIndex(jaccard, corpus)
        self._semantic: SemanticIndex | None = None
        # Posting lists of words, only filled without embeddings: neighbours are then found by common words.
        self._having: dict[str, array[int]] = {}

    def add(self, query: str, vector: Vectors | None) -> None:
        self.queries.append(query)
        self._lexical.add(query)
        if vector is not None:
            if self._semantic is None:
                self._semantic = SemanticIndex(vector.shape[0])
            self._semantic.add(vector[None, :])
        else:
            for word in words(query):
                self._having.setdefault(word, array("i")).append(len(self.queries) - 1)

    def clash(
        self, query: str, vector: Vectors | None, cosine: float, against: Literal["pool", "evaluation"]
    ) -> DuplicateQuery | None:
        match = self._lexical.find(query)
        if match is not None:
            return DuplicateQuery("lexical", against, self.queries[match.row], match.similarity)
        if vector is None or self._semantic is None:
            return None
        nearest = self._semantic.nearest(vector)
        if nearest and nearest[0].similarity >= cosine:
            return DuplicateQuery("semantic", against, self.queries[nearest[0].row], nearest[0].similarity)
        return None

    def nearest(self, query: str, vector: Vectors | None, k: int) -> list[str]:
        """Return the k nearest queries by embedding, or by common words without embeddings."""
        if vector is not None and self._semantic is not None:
            return [self.queries[match.row] for match in self._semantic.nearest(vector, k)]
        rows = [self._having[word] for word in words(query) if word in self._having]
        if not rows:
            return self.queries[:k]
        common = np.bincount(
            np.concatenate([np.frombuffer(some, np.int32) for some in rows]), minlength=len(self.queries)
        )
        # A stable sort keeps ties in the order of adding, so that prompts are reproducible.
        return [self.queries[row] for row in np.argsort(-common, kind="stable")[:k]]


class KnownQueries:
    """Kept and evaluation queries.

    `encoder` makes embeddings; None compares words only. `evaluation`: queries that must
    not be trained on.
    """

    def __init__(
        self, settings: DeduplicationSettings, encoder: Encoder | None, evaluation: Sequence[str] = ()
    ) -> None:
        self._settings = settings
        self._encoder = encoder
        self._kept = _Index(settings.jaccard)
        self._held_out: _Index | None = None
        if evaluation:
            self._held_out = _Index(settings.jaccard, evaluation)
            vectors = None if self._encoder is None else self._encoder.encode(list(evaluation))
            for row, query in enumerate(evaluation):
                self._held_out.add(query, None if vectors is None else vectors[row])

    def __len__(self) -> int:
        return len(self._kept.queries)

    async def load(self, queries: Sequence[str]) -> None:
        """Add queries without comparing them."""
        for start in range(0, len(queries), BLOCK):
            some = queries[start : start + BLOCK]
            vectors = await self._embed(some)
            for row, query in enumerate(some):
                self._kept.add(query, None if vectors is None else vectors[row])

    async def clash(self, query: str) -> DuplicateQuery | None:
        """Return the known query that this one duplicates, or None."""
        return self._clash(query, await self._embed_one(query))

    async def take(self, query: str) -> DuplicateQuery | None:
        """Add a new query; return the known query if it is a duplicate, else None."""
        vector = await self._embed_one(query)
        # No await between comparing and adding: of two equal proposals in flight, one is kept.
        found = self._clash(query, vector)
        if found is None:
            self._kept.add(query, vector)
        return found

    async def neighbours(self, text: str, k: int) -> list[str]:
        if not len(self) or k == 0:
            return []
        return self._kept.nearest(text, await self._embed_one(text), k)

    def _clash(self, query: str, vector: Vectors | None) -> DuplicateQuery | None:
        cosine = self._settings.cosine
        if (
            self._held_out is not None
            and (found := self._held_out.clash(query, vector, cosine, "evaluation")) is not None
        ):
            return found
        return self._kept.clash(query, vector, cosine, "pool")

    async def _embed_one(self, query: str) -> Vectors | None:
        vectors = await self._embed([query])
        return None if vectors is None else vectors[0]

    async def _embed(self, queries: Sequence[str]) -> Vectors | None:
        if self._encoder is None or not queries:
            return None
        return await asyncio.to_thread(self._encoder.encode, list(queries))


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

"""Experience pool: a workspace of the store with its encoder, searched and extended by text.

Two experiences of one scope are duplicates (`experience.join`) if their texts are equal, or if the cosine of
when_to_use and content reaches the threshold. Methods raise StoreError and EncoderUnavailable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from agentevolver.llm.embeddings import CachedEncoder, EmbeddingSettings, Encoder, EncoderUnavailable, make_encoder
from agentevolver.llm.settings import LLMSettings, Role
from agentevolver.utils.errors import ConfigError
from agentevolver.utils.vectors import Vectors
from experience_manager.database import Stamp
from experience_manager.experience import Experience
from experience_manager.index import Where
from experience_manager.merge import Added
from experience_manager.ranking import Ranking
from experience_manager.settings import ExperienceSettings, PruningSettings
from experience_manager.store import ANYWHERE, Count, Hit, Store

# If only when_to_use is embedded, many experiences share it: this many of the nearest are compared in full.
NEIGHBOURS = 8


class Pool:
    """Experiences of one workspace, encoded, deduplicated and searched by text."""

    def __init__(
        self,
        store: Store,
        encoder: Encoder,
        *,
        workspace: str = "default",
        embedded_text: str = "when_to_use+content",
        threshold: float = 0.85,
    ) -> None:
        """`threshold`: cosine from which two experiences are duplicates; 1.0 for identical texts only."""
        self.store = store
        self.workspace = workspace
        self._encoder = encoder
        self._embedded_text = embedded_text
        self._threshold = threshold

    @classmethod
    def of(cls, settings: ExperienceSettings, store: Store, encoder: Encoder, workspace: str | None = None) -> Pool:
        return cls(
            store,
            encoder,
            workspace=workspace or settings.reme.workspace_id,
            embedded_text=settings.embedded_text,
            threshold=settings.dedup_threshold,
        )

    def beside(self, workspace: str) -> Pool:
        pool = copy(self)
        pool.workspace = workspace
        return pool

    def __len__(self) -> int:
        return self.store.workspaces().get(self.workspace, 0)

    def require_encoder(self) -> None:
        """Raise EncoderMismatch if the stored vectors come from another encoder. Loads no model."""
        there = self.store.stamp
        if there is not None:
            self.store.require(Stamp(self._encoder.name, there.dimension, self._embedded_text))

    def warm_up(self) -> None:
        """Load the encoder before the first retrieval. Errors are ignored; that retrieval raises them."""
        with contextlib.suppress(EncoderUnavailable):
            self._encoder.encode(["warm up"])

    def add(self, experiences: Sequence[Experience]) -> Added:
        """Insert experiences, merging duplicates."""
        return self._add(experiences, merge=True)

    def put(self, experiences: Sequence[Experience]) -> Added:
        """Insert experiences without merging; equal ids are replaced."""
        return self._add(experiences, merge=False)

    def replace_all(self, experiences: Sequence[Experience]) -> Added:
        """Replace the workspace's content, in one transaction."""
        if not experiences:
            self.store.delete(self.workspace)
        return self._add(experiences, merge=False, instead=True)

    def search(self, text: str, k: int, where: Where = ANYWHERE, floor: float | None = None) -> list[Hit]:
        """Return the k experiences nearest to a text, best first, without those below the similarity `floor`."""
        vector = self._encoder.encode([text])
        hits = self.store.search(self.workspace, vector[0], k, self._stamp(vector), where)
        return [hit for hit in hits if floor is None or hit.similarity >= floor]

    def edit(self, identifier: str, **changes: Any) -> Experience:
        """Change fields and return the experience; a changed text is encoded again."""
        before = self.store.get(self.workspace, identifier)
        after = replace(
            before, **{name: value for name, value in changes.items() if name in Experience.__dataclass_fields__}
        )
        if after.embedded_text(self._embedded_text) == before.embedded_text(self._embedded_text):
            self.store.edit(self.workspace, before.id, changes, None, None)
        else:
            vector = self._encode([after])
            self.store.edit(self.workspace, before.id, changes, vector[0], self._stamp(vector))
        return self.store.get(self.workspace, before.id)

    def count(self, counts: Mapping[str, Count]) -> None:
        self.store.count(self.workspace, counts)

    def _add(self, experiences: Sequence[Experience], *, merge: bool, instead: bool = False) -> Added:
        if not experiences:
            return Added((), 0, 0, 0)
        # Encoded before the store's transaction, so that no process waits for a model.
        vectors = self._encode(experiences)
        neighbours = 1 if self._embedded_text != "when_to_use" else NEIGHBOURS
        is_same = self._is_same if merge else None
        return self.store.add(
            self.workspace, experiences, vectors, self._stamp(vectors), is_same, neighbours=neighbours, instead=instead
        )

    def _is_same(self, standing: Experience, newcomer: Experience, cosine: float) -> bool:
        if standing.wording == newcomer.wording:
            return True
        if self._threshold >= 1.0 or cosine < self._threshold:
            return False
        if self._embedded_text != "when_to_use":
            return True
        # Encodings are cached: at most a few texts are encoded while the store is locked.
        full = self._encoder.encode([e.embedded_text("when_to_use+content") for e in (standing, newcomer)])
        return float(np.dot(full[0], full[1])) >= self._threshold

    def _encode(self, experiences: Sequence[Experience]) -> Vectors:
        return self._encoder.encode([experience.embedded_text(self._embedded_text) for experience in experiences])

    def _stamp(self, vectors: Vectors) -> Stamp:
        return Stamp(self._encoder.name, vectors.shape[1], self._embedded_text)


def prune(
    store: Store,
    workspace: str,
    ranking: Ranking | None,
    *,
    min_uses: int,
    min_utility: float = PruningSettings.min_utility,
) -> int:
    """Delete experiences of too little use, and those that the ranking or, without one, their lift finds harmful."""
    lift = None if ranking is not None else PruningSettings.min_lift
    count = store.prune(workspace, min_uses=min_uses, min_utility=min_utility, min_lift=lift)
    return count + (ranking.prune() if ranking is not None else 0)


class Configuration(BaseModel):
    """Settings of pool commands; `experiment_dir` holds the store unless its path is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exp_manager: ExperienceSettings = ExperienceSettings()
    llm: LLMSettings = LLMSettings()
    experiment_dir: Path | None = None
    given: bool = False

    @property
    def store(self) -> Path:
        if self.exp_manager.store is not None:
            return self.exp_manager.store
        if self.experiment_dir is None:
            raise ConfigError(
                "the path of the store is missing: give --store FILE, --conf FILE, or exp_manager.store in --settings"
            )
        return self.experiment_dir / "experience.sqlite"

    @property
    def author(self) -> str:
        return self.llm.endpoint(Role.SUMMARISER).model

    def open_store(self, *, create: bool = False) -> Store:
        return Store(self.store, create=create)

    def fitted(self, store: Store) -> ExperienceSettings:
        """Return the section; without explicit settings, with the encoder of the store. Raises ConfigError if that is
        unknown."""
        stamp = store.stamp
        if self.given or stamp is None:
            return self.exp_manager
        kinds = {"all-MiniLM-L6-v2": "minilm", "hashing": "hashing"}
        kind = next((kind for name, kind in kinds.items() if stamp.encoder.startswith(name)), None)
        if kind is None:
            raise ConfigError(
                f"{store.path} holds vectors of {stamp.encoder}: configure this encoder with --settings "
                "(exp_manager.encoder)"
            )
        changes = {"encoder": EmbeddingSettings(kind=kind), "embedded_text": stamp.embedded_text}
        return self.exp_manager.model_copy(update=changes)

    def encoder(self, store: Store) -> CachedEncoder:
        return make_encoder(self.fitted(store).encoder)

    def pool(self, store: Store, workspace: str | None = None) -> Pool:
        return Pool.of(self.fitted(store), store, self.encoder(store), workspace)

"""The sections that the commands on a pool read of a configuration, as one object: which store, which encoder, which
models."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agentevolver.embeddings import CachedEncoder, EncoderSettings, make_encoder
from agentevolver.errors import ConfigError
from agentevolver.llm.settings import LLMSettings, Role
from experience_manager.pool import Pool
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Store


class Configuration(BaseModel):
    """The sections that the commands read; `experiment_dir` holds the store unless its path is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exp_manager: ExperienceSettings = ExperienceSettings()
    llm: LLMSettings = LLMSettings()
    experiment_dir: Path | None = None
    given: bool = False

    @property
    def store(self) -> Path:
        """The store's file; raises ConfigError if nothing says where it is."""
        if self.exp_manager.store is not None:
            return self.exp_manager.store
        if self.experiment_dir is None:
            raise ConfigError(
                "nothing says where the store is: give --store FILE, --conf FILE, or exp_manager.store in --settings"
            )
        return self.experiment_dir / "experience.sqlite"

    @property
    def author(self) -> str:
        """The name of the model that summarises."""
        return self.llm.endpoint(Role.SUMMARISER).model

    def open_store(self, *, create: bool = False) -> Store:
        """Open the store; raises StoreError."""
        above = self.exp_manager.hnsw_above if self.exp_manager.index == "hnsw" else None
        return Store(self.store, create=create, hnsw_above=above)

    def fitted(self, store: Store) -> ExperienceSettings:
        """Return the section, and without settings the store's own encoder in it; raises ConfigError if that cannot be
        known."""
        stamp = store.stamp
        if self.given or stamp is None:
            return self.exp_manager
        kinds = {"all-MiniLM-L6-v2": "minilm", "hashing": "hashing"}
        kind = next((kind for name, kind in kinds.items() if stamp.encoder.startswith(name)), None)
        if kind is None:
            raise ConfigError(
                f"{store.path} holds vectors of {stamp.encoder}: say how to get at it with --settings "
                "(exp_manager.encoder)"
            )
        changes = {"encoder": EncoderSettings(kind=kind), "embedded_text": stamp.embedded_text}
        return self.exp_manager.model_copy(update=changes)

    def encoder(self, store: Store) -> CachedEncoder:
        """Return the encoder of `fitted`."""
        return make_encoder(self.fitted(store).encoder)

    def pool(self, store: Store, workspace: str | None = None) -> Pool:
        """Return a workspace of the store with its encoder."""
        return Pool.of(self.fitted(store), store, self.encoder(store), workspace)

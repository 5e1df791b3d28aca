"""What the commands need of a configuration: the store, and where asked for its section and the language models.

`--conf` reads an experiment as the launcher does, `--config` the resolved configuration of a run, `--settings` a yaml with the sections
`exp_manager` and `llm` alone, `--store` a file. Where none of them says which encoder, it is the one whose vectors the store holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, ValidationError

from agentevolver.config.load import read_overrides, read_yaml
from agentevolver.embeddings import CachedEncoder, EncoderSettings, make_encoder
from agentevolver.errors import ConfigError
from agentevolver.llm.settings import LLMSettings, Role
from experience_manager.pool import Pool
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Store

if TYPE_CHECKING:
    from agentevolver.config.schema import Settings


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
            raise ConfigError("nothing says where the store is: give --store FILE, --conf FILE, or exp_manager.store in --settings")
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
        """Return the section, and without settings the store's own encoder in it; raises ConfigError if that cannot be known."""
        stamp = store.stamp
        if self.given or stamp is None:
            return self.exp_manager
        kinds = {"all-MiniLM-L6-v2": "minilm", "hashing": "hashing"}
        kind = next((kind for name, kind in kinds.items() if stamp.encoder.startswith(name)), None)
        if kind is None:
            raise ConfigError(f"{store.path} holds vectors of {stamp.encoder}: say how to get at it with --settings (exp_manager.encoder)")
        changes = {"encoder": EncoderSettings(kind=kind), "embedded_text": stamp.embedded_text}
        return self.exp_manager.model_copy(update=changes)

    def encoder(self, store: Store) -> CachedEncoder:
        """Return the encoder of `fitted`."""
        return make_encoder(self.fitted(store).encoder)

    def pool(self, store: Store, workspace: str | None = None) -> Pool:
        """Return a workspace of the store with its encoder."""
        return Pool.of(self.fitted(store), store, self.encoder(store), workspace)


def read_configuration(
    conf: Path | None = None,
    settings: Path | None = None,
    store: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    config: Path | None = None,
) -> Configuration:
    """Return what the options say; raises ConfigError with one line."""
    if conf is not None:
        tree = _from_experiment(conf, overrides)
    elif config is not None:
        tree = _from_run(config, overrides)
    else:
        own = read_yaml(settings) if settings is not None else {}
        merged = OmegaConf.merge(OmegaConf.create(own), OmegaConf.create(read_overrides(list(overrides))))
        tree = {str(key): value for key, value in OmegaConf.to_container(merged, resolve=True).items()}  # type: ignore[union-attr]
    # What a run was configured with stands; elsewhere the store says whose vectors it holds, unless that is overridden.
    given = bool(conf or config or {"preset", "encoder", "embedded_text"} & (tree.get("exp_manager") or {}).keys())
    if store is not None:
        tree = {**tree, "exp_manager": {**(tree.get("exp_manager") or {}), "store": store}}
    try:
        return Configuration.model_validate({**tree, "given": given})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{conf or settings or config or 'options'}: {place}: {first['msg'].lower()}, found {first['input']!r}"
        ) from error


def _from_experiment(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    from agentevolver.config.checks import load

    return _sections(load(path, list(overrides)).settings)


def _from_run(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    from agentevolver.config.checks import from_config

    tree = OmegaConf.merge(OmegaConf.create(read_yaml(path)), OmegaConf.create(read_overrides(list(overrides))))
    assert isinstance(tree, DictConfig)
    return _sections(from_config(tree))


def _sections(settings: Settings) -> dict[str, Any]:
    llm = settings.llm.model_copy(update={"ledger": settings.usage_ledger})
    return {"exp_manager": settings.exp_manager.model_dump(), "llm": llm.model_dump(), "experiment_dir": settings.experiment_dir}

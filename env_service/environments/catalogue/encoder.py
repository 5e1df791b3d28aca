"""The door to the project's sentence encoder: the one place where the service imports it (pyproject.toml names the
exception), since queries must be encoded as the catalogue's tools were.

A catalogue says which encoder made its vectors; queries are encoded by no other.
"""

from __future__ import annotations

from functools import cache

from agentevolver.embeddings import CachedEncoder, EmbeddingSettings, make_encoder
from env_service.environments.catalogue.tools import SETUP, CatalogueNotBuilt

KINDS = ("minilm", "hashing")
"""all-MiniLM-L6-v2; feature hashing, which needs no model, for tests and tiny policies."""


@cache
def encoder(kind: str) -> CachedEncoder:
    """Return the encoder of a kind, one a process, with its vectors cached in memory; raises ValueError."""
    if kind == "minilm":
        return make_encoder(EmbeddingSettings(kind="minilm"))
    if kind == "hashing":
        return make_encoder(EmbeddingSettings(kind="hashing"))
    raise ValueError(f"encoder {kind!r} must be one of {', '.join(KINDS)}")


def encoder_named(name: str) -> CachedEncoder:
    """Return the encoder that a catalogue was made with; raises CatalogueNotBuilt if it is none of ours."""
    for kind in KINDS:
        if encoder(kind).name == name:
            return encoder(kind)
    raise CatalogueNotBuilt(
        f"the catalogue was made with the encoder {name!r}, which is not here; build it anew: `{SETUP}`"
    )

"""The project's sentence encoder. Only this module of the service imports it (pyproject.toml names the exception).

Queries are encoded by the encoder that made the catalogue, in bfloat16 where the processor has it: half the time, with
a cosine of .9999 to the exact vector.
"""

from __future__ import annotations

from functools import cache

from agentevolver.llm.embeddings import CachedEncoder, EmbeddingSettings, MiniLM, has_bfloat16, make_encoder
from env_service.environments.catalogue.tools import SETUP, CatalogueNotBuilt

KINDS = ("minilm", "hashing")
"""all-MiniLM-L6-v2; feature hashing, which needs no model, for tests and tiny policies."""


@cache
def encoder(kind: str) -> CachedEncoder:
    if kind == "minilm":
        return make_encoder(EmbeddingSettings(kind="minilm"))
    if kind == "hashing":
        return make_encoder(EmbeddingSettings(kind="hashing"))
    raise ValueError(f"encoder {kind!r} must be one of {', '.join(KINDS)}")


@cache
def query_encoder(kind: str) -> CachedEncoder:
    if kind == "minilm" and has_bfloat16():
        return CachedEncoder(MiniLM(precision="bfloat16"))
    return encoder(kind)


def encoder_named(name: str) -> CachedEncoder:
    """Return the encoder of this name for queries; raises CatalogueNotBuilt for an unknown name."""
    for kind in KINDS:
        if encoder(kind).name == name:
            return query_encoder(kind)
    raise CatalogueNotBuilt(
        f"the catalogue was made with the encoder {name!r}, which is not here; build it anew: `{SETUP}`"
    )

"""Search in a catalogue: the tools whose vectors are nearest to that of a query.

A tool's vector is the mean of its whole text, its name and its description, weighted 2, 1, 1. Queries of solved
episodes that led to a tool count as further texts of it: their cosine, times `LEARNED`, replaces the tool's own where
it is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from env_service.environments.catalogue.tools import CatalogueTool, Vectors, words

LEARNED = 0.8
Encode = Callable[[Sequence[str]], Vectors]


def tool_vectors(tools: Sequence[CatalogueTool], encode: Encode) -> Vectors:
    """Return (n, d) vectors of length 1 at most, weighted means of three unit vectors each."""
    named = [words(tool.name_there) or tool.name for tool in tools]
    told = [tool.description or name for tool, name in zip(tools, named, strict=True)]
    whole = encode([tool.text() for tool in tools])
    return np.asarray((2 * whole + encode(named) + encode(told)) / 4, dtype=np.float32)


def scores(vectors: Vectors, query: Vectors, past: Vectors | None = None, places: Sequence[int] = ()) -> Vectors:
    """Return (n,) scores of all tools for a query (d,); `past` (m, d) are queries that served the tools at `places`."""
    found: Vectors = vectors @ query
    if past is not None and len(past):
        np.maximum.at(found, np.asarray(places), np.float32(LEARNED) * (past @ query))
    return found


def best(found: Vectors, k: int) -> list[int]:
    """Return the places of the `k` highest scores, the highest first; of equal ones the first."""
    return [int(place) for place in np.argsort(-found, kind="stable")[:k]]

"""Search in a catalogue: the tools whose vectors are nearest to the query's.

A tool's vector is the mean of its whole text, its name and its description, weighted 2, 1, 1. Queries of solved
episodes count as further texts of the tool that they led to: their cosine times `LEARNED` is used if it is larger.
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
    """Return the indices of the `k` highest scores, highest first; ties in order."""
    return [int(place) for place in np.argsort(-found, kind="stable")[:k]]

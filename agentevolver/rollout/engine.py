"""The engine that serves the policy: token ids in, sampled ids out. Every failure of it is an `EngineError`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class EngineError(Exception):
    """The engine that serves the policy gave no usable reply. Ends the attempt as `llm_error`;
    never becomes a message."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Sample of the engine: ids with their log-probs (same length), and the weight versions that sampled them."""

    ids: list[int]
    log_probs: list[float]
    min_version: int
    max_version: int


class Engine(Protocol):
    """Whatever samples from the policy."""

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        """Sample a reply to `prompt_ids`. Raises EngineError."""
        ...

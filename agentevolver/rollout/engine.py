"""The engine that serves the policy: token ids in, sampled ids out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class EngineError(Exception):
    """The policy's engine gave no usable reply. It ends the attempt as `llm_error` and never becomes a message."""


class EngineRefused(EngineError):
    """The engine cannot take the request; a retry is of no use."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A sampled reply: ids, their log-probs (same length), and the versions of the weights that sampled it."""

    ids: list[int]
    log_probs: list[float]
    min_version: int
    max_version: int


class Engine(Protocol):
    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        """Sample a reply to `prompt_ids`. Raises EngineError, EngineRefused for a mistake of the request."""
        ...

"""A policy in the place of vLLM's, for evaluations and chats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentevolver.evaluation import serving
from agentevolver.rollout.engine import Generated


class ScriptedEngine:
    """Stands for vLLM: says `done` to everything."""

    def __init__(self, tokenizer: Any) -> None:
        self._ids = [*tokenizer.encode("done", add_special_tokens=False), tokenizer.eos_token_id]
        self.closed = False
        self.sampled: list[dict[str, Any]] = []

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Generated:
        self.sampled.append(sampling_params)
        return Generated(self._ids, [0.0] * len(self._ids), 0, 0)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedEngine]:
    """Have scripted engines in the place of vLLM's; returns those that were started."""
    made: list[ScriptedEngine] = []

    @asynccontextmanager
    async def playing(config: Any, settings: Any, folder: Path, scratch: Path) -> AsyncIterator[ScriptedEngine]:
        assert (folder / "model.safetensors").exists()
        made.append(ScriptedEngine(AutoTokenizer.from_pretrained(folder)))
        yield made[-1]
        made[-1].closed = True

    monkeypatch.setattr(serving, "playing", playing)
    return made

"""Self-questioning as proposer: the task manager's pipeline on the world calc, the built-in teacher in its roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentevolver.builtin.teacher.prompt import Rates
from agentevolver.builtin.teacher.service import Teacher
from agentevolver.coevolve.explorer import QUESTIONED, ExplorerProposer, questioning_of, written
from agentevolver.coevolve.pool import Draw
from agentevolver.coevolve.types import Proposal
from agentevolver.config.schema import Settings
from agentevolver.errors import TrainingFailed
from agentevolver.llm import LLM
from agentevolver.types import Task
from agentevolver.utils.files import read_jsonl
from env_service.client import AsyncEnvClient
from env_service.environments.calc.grammar import evaluate
from env_service.registry import BUILT_IN
from task_manager.actions import format_of
from tests.agentevolver.builtin.teacher.test_service import serving as teaching
from tests.agentevolver.coevolve.fakes import configuration, settings_of
from tests.env_service.local_hosts import serving

EXPLORING = {
    "coevolve.proposer.by": "explorer",
    "task_manager.deduplication": "{jaccard: 1, semantic: false, contamination: exact}",
    "data.val_filter.levels": "[2]",
    **dict.fromkeys(("coevolve.proposer.steps", "coevolve.proposer.batch_size")),
}


class Round:
    """The proposer of a round, each call with one that knows nothing but the folder."""

    def __init__(self, folder: Path, url: str, llm: LLM, client: AsyncEnvClient, **changes: Any) -> None:
        tree = configuration(folder, **{"env_service.env_url": url, **EXPLORING, **changes})
        self.settings: Settings = settings_of(tree)
        self._llm, self._client = llm, client

    def proposer(self, number: int) -> ExplorerProposer:
        return ExplorerProposer(self.settings, self._llm, self._client, number)


def draws(number: int, numbers: range) -> list[Draw]:
    return [Draw(i, f"r{number}.{i:04d}", f"calc.free.{i:05d}") for i in numbers]


@asynccontextmanager
async def rounds(folder: Path, teacher: Teacher | None = None, **changes: Any) -> AsyncIterator[Round]:
    async with (
        serving({name: BUILT_IN[name] for name in ("calc", "propose")}) as service,
        teaching(teacher or Teacher()) as models,
        LLM(models) as llm,
        AsyncEnvClient(service.url) as client,
    ):
        yield Round(folder, service.url, llm, client, **changes)

"""Runs of the page: those it was opened with, and those that start later in its folders.

A run keeps its number, which is part of its URLs (`/runs/<n>/api`), as long as the page is served.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from agentevolver.view.experience import ExperiencePool
from agentevolver.view.experiment import MOST_RUNS, Experiment, NotAnExperiment, experiments_in
from agentevolver.view.routes import run_router


class Runs:
    """ASGI application of `/<n>/api/...`, mounted at `/runs`.

    Args:
        opened: runs shown from the start, at least one.
        folders: folders in which further runs may start (`experiments_in`).
    """

    def __init__(self, opened: Sequence[Experiment], folders: Sequence[Path] = ()) -> None:
        self._folders = tuple(folders)
        self._lock = threading.Lock()
        self._runs: list[Experiment] = []
        self._pools: list[ExperiencePool] = []
        self._routers: list[APIRouter] = []
        for run in opened:
            self._add(run)

    @property
    def first(self) -> APIRouter:
        return self._routers[0]

    def look(self) -> list[Experiment]:
        """Return all runs, at most `MOST_RUNS`. New runs come last."""
        with self._lock:
            known = {run.folder for run in self._runs}
            for folder in self._folders:
                for run in self._begun(folder):
                    if run.folder not in known and len(self._runs) < MOST_RUNS:
                        known.add(run.folder)
                        self._add(run)
            return list(self._runs)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mounted = scope.get("root_path", "")
        number = scope["path"].removeprefix(mounted).split("/")[1]
        if not (number.isdecimal() and number.isascii() and int(number) < len(self._routers)):
            raise HTTPException(404)
        inner = {**scope, "root_path": f"{mounted}/{number}"}
        await self._routers[int(number)](inner, receive, send)

    def _add(self, run: Experiment) -> None:
        pool = ExperiencePool(run)
        self._runs.append(run)
        self._pools.append(pool)
        self._routers.append(run_router(run, pool))

    @staticmethod
    def _begun(folder: Path) -> list[Experiment]:
        """Return the runs of a folder, or none if the folder is gone or holds too many."""
        try:
            return [Experiment(path) for path in experiments_in(folder)]
        except NotAnExperiment:
            return []

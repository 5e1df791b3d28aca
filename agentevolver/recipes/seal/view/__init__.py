"""View of the closed loop's weaknesses."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from agentevolver.recipes.seal.view.weaknesses import ROUNDS, STATE, weaknesses
from agentevolver.view.experiment import Experiment, newest
from agentevolver.view.routes import Json
from agentevolver.view.views import AddedView


def router(experiment: Experiment) -> APIRouter:
    """Return the routes of a run."""
    router = APIRouter()

    @router.get("/tasks/weaknesses")
    def told() -> Response:
        return Json(weaknesses(experiment))

    return router


def _files(folder: Path) -> chain[Path]:
    return chain(folder.glob(f"checkpoints/*/{STATE}"), folder.glob(f"tasks/rounds/**/{ROUNDS}"))


VIEW = AddedView(
    "weaknesses",
    "Weaknesses",
    45,
    Path(__file__).parent / "static",
    router,
    lambda folder: any(_files(folder)),
    lambda folder: str(newest(_files(folder))),
)

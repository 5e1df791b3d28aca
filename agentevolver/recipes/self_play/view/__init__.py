"""View of self-play: ratings, scores, and the pool of opponents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from agentevolver.utils.files import signature
from agentevolver.view.experiment import Experiment, read_object
from agentevolver.view.routes import Json
from agentevolver.view.views import AddedView

RATINGS = "self_play.json"


def router(experiment: Experiment) -> APIRouter:
    router = APIRouter()

    @router.get("/self_play")
    def read() -> Response:
        return Json(ratings(experiment.folder))

    return router


def ratings(folder: Path) -> dict[str, Any]:
    """Return {} if the run has no ratings."""
    told = read_object(folder / RATINGS)
    members = [one for one in told.get("members") or () if isinstance(one, dict)]
    shown = [{key: one.get(key) for key in ("name", "elo", "games")} for one in members]
    return {"step": told.get("step"), "elo": told.get("elo"), "members": shown} if told else {}


VIEW = AddedView(
    "self_play",
    "Self-play",
    15,
    Path(__file__).parent / "static",
    router,
    lambda folder: (folder / RATINGS).is_file(),
    lambda folder: str(signature(folder / RATINGS)),
)

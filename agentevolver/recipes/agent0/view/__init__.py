"""View of Agent0's rounds."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from agentevolver.recipes.agent0.view.rounds import MANIFEST, Rounds
from agentevolver.utils.files import signature
from agentevolver.view.experiment import BadPageRequest, Experiment, newest
from agentevolver.view.routes import Json, Limit, Number
from agentevolver.view.views import AddedView

_FILES = ("round_*/pool.jsonl", "round_*/proposer/metrics.jsonl")


def router(experiment: Experiment) -> APIRouter:
    router, rounds = APIRouter(), Rounds(experiment.folder)

    @router.get("/rounds")
    def overview() -> Response:
        return Json(rounds.overview())

    @router.get("/rounds/{number}/records")
    def records(number: Number, fate: str = "", reason: str = "", offset: Number = 0, limit: Limit = 50) -> Response:
        if fate not in ("", "kept", "dropped"):
            raise BadPageRequest(f"fate: {fate!r} is not known, write kept or dropped")
        return Json(rounds.records(number, fate=fate, reason=reason, offset=offset, limit=limit))

    return router


def _version(folder: Path) -> str:
    return f"{signature(folder / MANIFEST)} {newest(path for files in _FILES for path in folder.glob(files))}"


VIEW = AddedView(
    "rounds",
    "Rounds",
    50,
    Path(__file__).parent / "static",
    router,
    lambda folder: (folder / MANIFEST).is_file(),
    _version,
)

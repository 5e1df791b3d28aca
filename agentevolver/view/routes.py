"""HTTP routes of one run. Handlers are plain functions, which FastAPI runs in threads, so a large file does not delay
others."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Query
from pydantic import Field
from starlette.responses import Response

from agentevolver.view.experience import ExperiencePool
from agentevolver.view.experiment import BadPageRequest, Experiment
from agentevolver.view.logs import Logs
from agentevolver.view.metrics import RunMetrics, usage
from agentevolver.view.samples import Samples
from agentevolver.view.success import success_by
from agentevolver.view.tasks import FATES, Tasks
from agentevolver.view.trajectories import FOLDERS, Filter, Trajectories, cursor, explained_of
from agentevolver.view.views import added_views

# Largest integer that JavaScript represents exactly. It fits into 64 bits and into a file name.
Number = Annotated[int, Field(ge=0, le=2**53 - 1)]
Limit = Annotated[int, Query(ge=1, le=500)]


class Json(Response):
    """JSON response by orjson. NaN becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def run_router(experiment: Experiment, pool: ExperiencePool) -> APIRouter:
    router = APIRouter(prefix="/api")
    _run_routes(router, experiment)
    _trajectory_routes(router, experiment)
    _task_routes(router, experiment)
    _experience_routes(router, pool)
    for view in added_views():
        router.include_router(view.router(experiment))
    return router


def _run_routes(router: APIRouter, experiment: Experiment) -> None:
    metrics, logs = RunMetrics(experiment.folder / "metrics.jsonl"), Logs(experiment.folder / "logs")

    @router.get("/state")
    def state() -> Response:
        folder, added = experiment.folder, added_views()
        versions = experiment.versions() | {view.name: view.version(folder) for view in added}
        filled = [view.name for view in added if view.has_data(folder)]
        return Json(experiment.state() | {"versions": versions, "views": filled})

    @router.get("/metrics")
    def read_metrics(
        name: Annotated[list[str] | None, Query(max_length=400)] = None, generation: Number = 0, since: Number = 0
    ) -> Response:
        return Json(metrics.read(name or [], generation=generation, since=since))

    @router.get("/metrics/names")
    def metric_names() -> Response:
        return Json(metrics.names())

    @router.get("/usage")
    def llm_usage() -> Response:
        return Json(usage(experiment))

    @router.get("/run")
    def run() -> Response:
        return Json(
            {
                "config": experiment.shown_config(),
                "launches": experiment.launches(),
                "ray_dashboard": experiment.ray_dashboard(),
            }
        )

    @router.get("/logs")
    def log_files() -> Response:
        return Json(logs.files())

    @router.get("/logs/{name}")
    def log(name: str, offset: Number | None = None) -> Response:
        return Json(logs.read(name, offset))


def _trajectory_routes(router: APIRouter, experiment: Experiment) -> None:
    kinds = {kind: Trajectories(experiment.folder / folder) for kind, folder in FOLDERS.items()}
    samples = Samples(experiment)

    def of(kind: str) -> Trajectories:
        if kind not in kinds:
            raise BadPageRequest(f"{kind!r} is not known, write {' or '.join(kinds)}")
        return kinds[kind]

    @router.get("/trajectories/{kind}")
    def find(
        kind: str,
        step: Number | None = None,
        outcome: str = "",
        origin: str = "",
        guidance: str = "",
        text: str = "",
        environment: str = "",
        task: str = "",
        before: str = "",
        limit: Limit = 100,
    ) -> Response:
        wanted = Filter(step, outcome, origin, guidance, text.strip(), environment, task)
        found = of(kind).find(wanted, before=cursor(before), limit=limit)
        return Json(found | {"any": bool(of(kind).steps()), "environments": experiment.environments()})

    @router.get("/trajectories/{kind}/steps")
    def steps(kind: str) -> Response:
        return Json(of(kind).steps())

    @router.get("/success/{kind}")
    def success(kind: str, by: str = "family", last: Annotated[int, Query(ge=1, le=50)] = 1) -> Response:
        return Json(success_by(of(kind), by, last))

    @router.get("/trajectories/{kind}/{step}/{index}")
    def one(kind: str, step: Number, index: Number) -> Response:
        found = of(kind).one(step, index)
        rows = samples.rows(step, found["summary"]["id"]) if kind == "training" else []
        return Json(
            found | {"rows": rows, "samples_dumped": samples.exist(), "explained": explained_of(found["record"])}
        )


def _task_routes(router: APIRouter, experiment: Experiment) -> None:
    tasks = Tasks(experiment.folder / "tasks")

    @router.get("/tasks")
    def overview() -> Response:
        return Json(tasks.overview())

    @router.get("/tasks/proposals")
    def proposals(
        journal: str, run: str, fate: str = "", text: str = "", offset: Number = 0, limit: Limit = 50
    ) -> Response:
        if fate and fate not in FATES:
            raise BadPageRequest(f"fate: {fate!r} is not known, write {', '.join(FATES)}")
        return Json(tasks.proposals(journal, run, fate=fate, text=text.strip(), offset=offset, limit=limit))

    @router.get("/tasks/exploration")
    def exploration(journal: str, run: str, index: Number) -> Response:
        return Json(tasks.exploration(journal, run, index))


def _experience_routes(router: APIRouter, pool: ExperiencePool) -> None:
    @router.get("/experience")
    def read(
        workspace: str = "",
        text: str = "",
        by_meaning: bool = False,
        category: str = "",
        sort: str = "newest",
        offset: Number = 0,
        limit: Limit = 50,
    ) -> Response:
        return Json(
            pool.read(
                workspace=workspace,
                text=text.strip(),
                by_meaning=by_meaning,
                category=category,
                sort=sort,
                offset=offset,
                limit=limit,
            )
        )

    @router.patch("/experience/{workspace}/{identifier}")
    def edit(workspace: str, identifier: str, changes: Annotated[dict[str, Any], Body()]) -> Response:
        return Json(pool.edit(workspace, identifier, changes))

    @router.delete("/experience/{workspace}/{identifier}")
    def delete(workspace: str, identifier: str) -> Response:
        pool.delete(workspace, identifier)
        return Json({"deleted": identifier})

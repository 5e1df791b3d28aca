"""One AppWorld world, open in a process that ends with it.

The process sees a root of its own under `directory`, with links to the data it needs and no ground truth, so that an
agent cannot read the answer. AppWorld saves the world's state there after every execution; another process grades it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import walls

EXPERIMENT = "episode"
# The root is taken at import: an episode later points AppWorld to a root of its own.
_ROOT = Path(os.environ.get("APPWORLD_ROOT", os.getcwd())).resolve()


class WrongRequest(ValueError):
    pass


def data_folder() -> Path:
    return _ROOT / "data"


def episode_root(directory: str) -> Path:
    return Path(directory) / "world"


def grading_root(directory: str) -> Path:
    return Path(directory) / "grading"


OPEN_INSTRUCTION = "There is no task in this session. Explore the apps."


def _link_data(task_id: str, directory: str) -> list[str]:
    """Build the data folder of the episode out of links; return the real paths that the process may read."""
    source, target = data_folder(), episode_root(directory) / "data"
    links = {name: source / name for name in os.listdir(source) if name not in ("tasks", "datasets")}
    links |= {f"tasks/{task_id}/{name}": source / "tasks" / task_id / name for name in ("specs.json", "dbs")}
    for name, real in links.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).symlink_to(real)
    return [str(real) for real in links.values()]


def _move_into(directory: str) -> None:
    """Make the episode's folder the only place that this process writes to."""
    root = str(episode_root(directory))
    os.environ.update(APPWORLD_ROOT=root, HOME=directory, IPYTHONDIR=f"{directory}/ipython", TMPDIR=directory)
    os.chdir(root)


class AppWorldEpisode:
    def __init__(self, task_id: str, directory: str, is_open_query: bool, random_seed: int, confinement: str) -> None:
        """Open the world in a confined process (`walls.confine`); raises walls.Unconfined and AppWorld's errors."""
        from appworld import AppWorld  # type: ignore[import-not-found]

        allowed = _link_data(task_id, directory)
        walls.limit_resources()
        answers = str(data_folder() / "tasks" / task_id / "ground_truth")
        walls.confine(confinement, [sys.prefix, "/etc/localtime", *allowed], directory, [answers])
        _move_into(directory)
        self._world = AppWorld(
            task_id,
            experiment_name=EXPERIMENT,
            load_ground_truth=False,
            max_interactions=10**9,
            random_seed=random_seed,
        )
        self._is_open_query = is_open_query
        if is_open_query:
            for task in self._world.models.supervisor.Task.all():
                task.instruction = OPEN_INSTRUCTION
                task.save()
        self._hashes = self._model_hashes()

    def describe(self) -> dict[str, Any]:
        task = self._world.task
        return {
            "instruction": OPEN_INSTRUCTION if self._is_open_query else task.instruction,
            "supervisor": {
                key: str(task.supervisor[key]) for key in ("first_name", "last_name", "email", "phone_number")
            },
            "datetime": task.datetime.isoformat(),
            "app_descriptions": dict(task.app_descriptions),
        }

    def execute(self, code: str, limit_s: int, max_chars: int) -> dict[str, Any]:
        """Run code in the world's shell; the middle of `output` beyond `max_chars` is cut.

        AppWorld enforces `limit_s` by an exception in the agent's code, which that code may catch.
        """
        world = self._world
        world.timeout_seconds = limit_s
        try:
            output = world.execute(code)
        except BaseException as error:  # code can raise KeyboardInterrupt and its like, which AppWorld lets through
            world.safety_guard.disable()
            world.execute("pass")
            output = f"Execution failed. Traceback:\n{type(error).__name__}: {error}"
        kept = cut(output, max_chars)
        with suppress(IndexError):
            world.environment_io[-1]["output"] = kept  # AppWorld writes the whole history to disk after every execution
        return {
            "output": kept,
            "chars": len(output),
            "failed": output.startswith("Execution failed."),
            "completed": bool(world.task_completed()),
        }

    def state(self) -> dict[str, Any]:
        """Return the changes so far: tables by name, the task's status, the number of API calls."""
        now = self._model_hashes()
        changed = sorted(name for name in now if now[name] != self._hashes.get(name))
        return {
            "completed": bool(self._world.task_completed()),
            "changed_models": [name for name in changed if name != "supervisor.Task"],
            "api_calls": len(self._world.requester.requests),
        }

    def docs(self, app_name: str | None = None) -> dict[str, Any]:
        """Return the descriptions of all APIs by app, or the full documentation of one app; raises WrongRequest if it
        does not exist."""
        docs = self._world.task.api_docs
        if app_name is None:
            return {app: {api: doc["description"] for api, doc in apis.items()} for app, apis in docs.items()}
        if app_name not in docs:
            raise WrongRequest(f"no app is called {app_name!r}; known: {', '.join(docs)}")
        return {api: dict(doc) for api, doc in docs[app_name].items()}

    def _model_hashes(self) -> dict[str, Any]:
        return dict(self._world.models.model_hashes())


def cut(text: str, max_chars: int) -> str:
    """Return `text`, its middle replaced by a line with the number of missing characters if it is too long."""
    if len(text) <= max_chars:
        return text
    head = max_chars * 3 // 5
    tail = max_chars - head
    return f"{text[:head]}\n[... {len(text) - max_chars} characters left out; print less at once ...]\n{text[-tail:]}"

"""Session of one forked worker: answers requests on its connection until the other end closes.

A request is `{"op": name, ...}`, a reply `{"ok": true, "result": ...}` or `{"ok": false, "kind": "value" | "failure",
"error": text}`: "value" for a wrong request, "failure" for AppWorld's. `grade` grades a saved state, `baseline` a world
in which nothing was done but to complete the task.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import datetime
from typing import Any

from .channel import Channel, ChannelClosed
from .episode import EXPERIMENT, AppWorldEpisode, WrongRequest, data_folder, episode_root, grading_root


def grade(task_id: str, directory: str) -> dict[str, Any]:
    """Grade the last saved state of the episode in `directory`."""
    return _evaluate(task_id, directory, str(episode_root(directory) / "experiments"))


def baseline(task_id: str, directory: str) -> dict[str, Any]:
    from appworld import AppWorld  # type: ignore[import-not-found]

    outputs = f"{directory}/outputs"
    os.makedirs(outputs)
    _enter(directory, outputs)
    world = AppWorld(task_id, experiment_name=EXPERIMENT, load_ground_truth=False)
    world.execute("apis.supervisor.complete_task()")
    world.close()
    return _evaluate(task_id, directory, outputs)


def _enter(directory: str, experiments: str) -> None:
    root = grading_root(directory)
    if not root.exists():
        root.mkdir()
        (root / "data").symlink_to(data_folder())
        (root / "experiments").symlink_to(experiments)
    os.environ.update(APPWORLD_ROOT=str(root), HOME=directory, IPYTHONDIR=f"{directory}/ipython")
    os.chdir(root)


def _evaluate(task_id: str, directory: str, experiments: str) -> dict[str, Any]:
    from appworld import evaluate_task

    _enter(directory, experiments)
    tracker = evaluate_task(task_id, EXPERIMENT, suppress_errors=True, save_report=False)
    return {
        "success": bool(tracker.success),
        "difficulty": tracker.difficulty,
        "num_checks": int(tracker.num_tests),
        "passes": [str(check["requirement"]) for check in tracker.passes],
        "failures": [str(check["requirement"]) for check in tracker.failures],
        "labels": {str(check["requirement"]): check["label"] for check in [*tracker.passes, *tracker.failures]},
    }


log = logging.getLogger("appworld_worker")


def warm_up() -> str:
    """Import all that episodes and gradings need, fill shared caches, and return AppWorld's version.

    Raises RuntimeError if the package's code was not unpacked, and AppWorld's errors for unreadable data.
    """
    import appworld
    import pytest  # noqa: F401  AppWorld's evaluator imports it in every first comparison
    from appworld.apps import build_main_app, get_all_apps  # type: ignore[import-not-found]
    from appworld.collections.api_docs import ApiDocCollection  # type: ignore[import-not-found]
    from appworld.common.utils import freeze_time, import_models_module  # type: ignore[import-not-found]

    try:
        for app in get_all_apps():
            import_models_module(app)
        build_main_app(tuple(get_all_apps()))
    except ImportError as error:
        raise RuntimeError(f"the apps of AppWorld are not unpacked ({error}); run setup.sh again") from error
    ApiDocCollection.load(load_apps=tuple(get_all_apps(skip_admin=True)), include_response_schemas=True)
    with freeze_time(datetime(2023, 5, 18)):
        pass  # the first freeze looks through all modules
    return str(appworld.__version__)


class AppWorldSession:
    """The operations of a worker. Only `open` and the operations after it run in a process with an agent's code."""

    def __init__(self) -> None:
        self._episode: AppWorldEpisode | None = None
        self._operations: dict[str, Callable[..., Any]] = {
            "grade": grade,
            "baseline": baseline,
            "open": self._open,
            "execute": lambda **fields: self._world.execute(**fields),
            "state": lambda: self._world.state(),
            "docs": lambda **fields: self._world.docs(**fields),
        }

    @property
    def _world(self) -> AppWorldEpisode:
        if self._episode is None:
            raise WrongRequest("no world is open; send `open` first")
        return self._episode

    def _open(self, **fields: Any) -> dict[str, Any]:
        if self._episode is not None:
            raise WrongRequest("a world is already open; a worker holds one")
        self._episode = AppWorldEpisode(**fields)
        return self._episode.describe()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request.pop("op", None)
        operation = self._operations.get(str(name))
        if operation is None:
            return {
                "ok": False,
                "kind": "value",
                "error": f"unknown operation {name!r}; known: {', '.join(self._operations)}",
            }
        try:
            return {"ok": True, "result": operation(**request)}
        except WrongRequest as error:
            return {"ok": False, "kind": "value", "error": str(error)}
        except Exception as error:  # AppWorld raises plain Exception for everything; the client decides what follows
            log.exception("%s failed", name)
            return {"ok": False, "kind": "failure", "error": f"{type(error).__name__}: {error}"}


def serve(channel: Channel) -> None:
    session = AppWorldSession()
    try:
        channel.send({"ok": True, "result": {"pid": os.getpid()}})
        while True:
            channel.send(session.answer(channel.receive()))
    except ChannelClosed:
        return

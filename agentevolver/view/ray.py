"""Ray cluster of a run that goes on: its actors, what waits, its object store, and the way into its dashboard.

Asks Ray's dashboard, with the token that the launcher wrote for it, at most once in `EVERY_S` seconds. A browser is let
in by the cookie that the dashboard's own login sets: cookies are of a host and not of a port, so that the page can set
it. Who may be let in is in `agentevolver.utils.web.owner`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from agentevolver.utils.web.owner import is_owner_key
from agentevolver.view.experiment import Experiment

# Where the launcher keeps the record and the Ray token of each run of this checkout (`agentevolver.launcher.records`).
REGISTRY = Path(__file__).resolve().parents[2] / ".agentevolver" / "run"
EVERY_S = 4.0
TIMEOUT_S = 2.0
LISTED, WORD = 20, 120
RAY_COOKIE = "ray-authentication-token"
# It says each request otherwise, every few seconds.
logging.getLogger("httpx").setLevel(logging.WARNING)
_SUMMARIES = {"actors": "/api/v0/actors/summarize", "tasks": "/api/v0/tasks/summarize"}
_NODES = "/nodes?view=summary"


class RayCluster:
    """The Ray cluster of the run in a folder, while a launcher of this checkout runs it here with a dashboard."""

    def __init__(self, experiment: Experiment, registry: Path = REGISTRY) -> None:
        self._experiment = experiment
        self._registry = registry
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._seen: dict[str, Any] = {}

    @property
    def address(self) -> str | None:
        """Where the dashboard is, None if there is none."""
        found = self._record()
        return None if found is None else found[1]

    def token_path(self) -> Path | None:
        """Where the cluster's token lies, None if there is no dashboard."""
        found = self._record()
        return None if found is None else self._registry / f"{found[0]}.token"

    def token_for(self, key: str) -> str | None:
        """Return the cluster's token to who has the owner's key, None to anybody else."""
        path = self.token_path()
        if path is None or not is_owner_key(key, path):
            return None
        return path.read_text(encoding="utf-8").strip()

    def read(self) -> dict[str, Any]:
        """Return `{address, problem, actors, tasks, nodes}`, {} where no cluster runs.

        `actors` and `tasks` are `{name, states: {state: count}}` by class and by function, `nodes`
        `{store_used_gb, store_gb, cpus}`.
        """
        address = self.address
        if address is None:
            return {}
        with self._lock:
            if time.monotonic() - self._asked_at > EVERY_S or self._seen.get("address") != address:
                self._asked_at = time.monotonic()
                self._seen = self._ask(address)
            return self._seen

    def _record(self) -> tuple[str, str] | None:
        """Return id and dashboard of the run, None where it does not run here or has no dashboard."""
        launch = (self._experiment.launches() or [{}])[-1]
        run_id = str(launch.get("run_id") or "")
        if not run_id or "ended_at" in launch or Path(run_id).name != run_id or not self._experiment.processes():
            return None
        try:
            record = json.loads((self._registry / f"{run_id}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        dashboard = record.get("dashboard") if isinstance(record, dict) else None
        return (run_id, dashboard) if isinstance(dashboard, str) and dashboard.startswith("http://") else None

    def _ask(self, address: str) -> dict[str, Any]:
        path = self.token_path()
        token = path.read_text(encoding="utf-8").strip() if path is not None and path.is_file() else ""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        told: dict[str, Any] = {"address": address, "problem": "", "actors": [], "tasks": [], "nodes": []}
        try:
            with httpx.Client(base_url=address, headers=headers, timeout=TIMEOUT_S, trust_env=False) as client:
                for name, url in _SUMMARIES.items():
                    told[name] = _summary(client.get(url).raise_for_status().json())
                told["nodes"] = _nodes(client.get(_NODES).raise_for_status().json())
        except (httpx.HTTPError, ValueError) as error:
            told["problem"] = f"Ray's dashboard does not answer ({type(error).__name__})"
        return told


def _summary(answer: Any) -> list[dict[str, Any]]:
    """Return counts by state of each class or function, the most first; what is of another shape is left out."""
    groups = _at(answer, "data", "result", "result", "node_id_to_summary", "cluster", "summary")
    found: list[tuple[int, dict[str, Any]]] = []
    for name, group in groups.items() if isinstance(groups, dict) else ():
        counts = Counter(
            {str(state)[:WORD]: n for state, n in _items(_at(group, "state_counts")) if isinstance(n, int) and n > 0}
        )
        if counts:
            found.append((counts.total(), {"name": str(name)[:WORD], "states": dict(counts)}))
    return [group for _, group in sorted(found, key=lambda one: -one[0])[:LISTED]]


def _nodes(answer: Any) -> list[dict[str, float]]:
    listed = _at(answer, "data", "summary")
    found = []
    for node in listed if isinstance(listed, list) else []:
        raylet = _at(node, "raylet")
        used, free = (_gb(_at(raylet, name)) for name in ("objectStoreUsedMemory", "objectStoreAvailableMemory"))
        if used + free > 0:
            found.append({"store_used_gb": used, "store_gb": used + free})
    return found


def _gb(value: Any) -> float:
    return value / 1e9 if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value

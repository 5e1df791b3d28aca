"""Experiment folder of a run, and the page's errors with their HTTP status."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from agentevolver.trainer.monitor.log import read_status
from agentevolver.utils.files import signature
from agentevolver.utils.processes import ProcessId, carriers
from agentevolver.utils.secrets import masked_tree


class ViewError(RuntimeError):
    """Base class of the page's errors."""

    status = 500


class NotAnExperiment(ViewError):
    status = 404


class NotThere(ViewError):
    status = 404


class BadPageRequest(ViewError):
    status = 400


class UnreadableFile(ViewError):
    status = 503


# Where the launcher keeps the record of each run of this checkout (`agentevolver.launcher.records`).
REGISTRY = Path(__file__).resolve().parents[2] / ".agentevolver" / "run"
MOST_RUNS = 32
_ADVICE = "give the folder of a run, experiments/<project>/<experiment>"
# Scanning the machine's processes takes milliseconds, so the result is cached for so many seconds.
_LOOK_EVERY_S = 5.0


class Experiment:
    """Folder of one run. Raises NotAnExperiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if not self.folder.is_dir():
            raise NotAnExperiment(f"{folder}: there is no such folder; {_ADVICE}")
        if not (self.folder / "config.yaml").is_file():
            raise NotAnExperiment(f"{folder} is no run's folder: it has no config.yaml; {_ADVICE}")
        self._processes: set[ProcessId] = set()
        self._looked_at = float("-inf")
        self._config: tuple[Any, dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration, or {} if it is unreadable. Environment variables stay references."""
        try:
            return self._read_config()
        except UnreadableFile:
            return {}

    def shown_config(self) -> str:
        """Return the configuration as yaml without secrets. Raises UnreadableFile."""
        return yaml.dump(masked_tree(self._read_config()), Dumper=_Dumper, sort_keys=False, allow_unicode=True)

    def setting(self, *keys: str) -> Any:
        """Return a value of the configuration, or None if the key is missing."""
        value: Any = self.config()
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def environments(self) -> list[str]:
        named = self.setting("env_service", "env_type")
        return list(map(str, named)) if isinstance(named, dict) else [str(named)] if named else []

    def only_split(self) -> str | None:
        """Return the only validation split, or None if there are several."""
        # Metric names contain the split only if there are several.
        splits, own = self.setting("data", "val_splits"), self.setting("env_service", "environments")
        apart = [one for one in (own if isinstance(own, dict) else {}).values() if isinstance(one, dict)]
        if not isinstance(splits, list) or len(splits) != 1 or any(one.get("val_splits") for one in apart):
            return None
        return str(splits[0])

    def status(self) -> dict[str, Any]:
        return read_status(self.folder)

    def launches(self) -> list[dict[str, Any]]:
        """Return the records of all launches, newest last."""
        found = [read_object(path) for path in sorted((self.folder / "launches").glob("*.json"))]
        return sorted(
            (masked_tree(launch) for launch in found if "started_at" in launch),
            key=lambda launch: str(launch["started_at"]),
        )

    def processes(self) -> set[ProcessId]:
        """Return the processes of the newest launch on this machine, without the page's own."""
        now = time.monotonic()
        if now - self._looked_at > _LOOK_EVERY_S:
            self._looked_at = now
            launches = self.launches()
            open_ended = bool(launches) and "ended_at" not in launches[-1]
            self._processes = carriers(str(launches[-1]["run_id"])) if open_ended else set()
        return self._processes

    def ray_dashboard(self) -> str | None:
        """Return the URL of Ray's dashboard, or None if the run does not run here or has no dashboard."""
        launch = (self.launches() or [{}])[-1]
        if not self._is_running(launch):
            return None
        address = read_object(REGISTRY / f"{launch.get('run_id')}.json").get("dashboard")
        # The address becomes a link, so schemes such as `javascript:` must not pass.
        return address if isinstance(address, str) and address.startswith("http://") else None

    def state(self) -> dict[str, Any]:
        """Return the header of the run's page.

        `running` is None if unknown: the launch was made on another machine and has no recorded end.
        """
        launch = (self.launches() or [{}])[-1]
        return {
            "name": self.name,
            "folder": str(self.folder),
            "status": self.status(),
            "running": self._is_running(launch),
            "launch": {key: launch.get(key) for key in ("run_id", "started_at", "ended_at", "exit_code")},
        }

    def brief(self) -> dict[str, Any]:
        launch = (self.launches() or [{}])[-1]
        status = self.status()
        return {
            "running": self._is_running(launch),
            "step": status.get("step"),
            "total_steps": status.get("total_steps"),
            "environments": self.environments(),
            "split": self.only_split(),
            "started_at": launch.get("started_at"),
        }

    def versions(self) -> dict[str, str]:
        """Return {part of the page: text that changes whenever the part may have new data}."""
        single = {
            "metrics": "metrics.jsonl",
            "experience": "experience.sqlite-wal",
            "pool": "experience.sqlite",
            "usage": "llm_usage.sqlite-wal",
            "ledger": "llm_usage.sqlite",
        }
        out = {name: str(signature(self.folder / file)) for name, file in single.items()}
        # Files of steps are renamed into place, which changes the folder's time: thousands of files need no look each.
        out |= {name: str(signature(self.folder / name)) for name in ("trajectories", "validation", "samples")}
        return out | {
            name: str(newest((self.folder / name).glob(pattern)))
            for name, pattern in (("tasks", "**/*"), ("logs", "*.log"))
        }

    def _read_config(self) -> dict[str, Any]:
        path = self.folder / "config.yaml"
        mark = signature(path)
        if self._config is None or self._config[0] != mark:
            try:
                tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                raise UnreadableFile(f"config.yaml cannot be read: {' '.join(str(error).split())}") from error
            self._config = (mark, tree if isinstance(tree, dict) else {})
        return self._config[1]

    def _is_running(self, launch: dict[str, Any]) -> bool | None:
        if not launch or "ended_at" in launch:
            return False
        host = (launch.get("hardware") or {}).get("host")
        return bool(self.processes()) if host in (None, socket.gethostname()) else None


# A configuration has 900 lines. libyaml, if PyYAML was built with it, is many times faster on them.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def newest(paths: Iterable[Path]) -> tuple[int, int]:
    """Return the number of files, and the sum of their sizes and times. Both change if any file changes."""
    files = [file for file in paths if not file.name.startswith(".") and not file.name.endswith("lock")]
    found = [mark for file in files if (mark := signature(file)) is not None]
    return len(found), sum(size + changed for _, size, changed in found)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, or {} if the file is missing or malformed."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def experiments_in(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run, else the runs at most two levels below.

    Without any run below, return the folder: opening it reports the problem.

    Raises:
        NotAnExperiment: there are more than `MOST_RUNS`.
    """
    below = () if (folder / "config.yaml").is_file() else ("*/config.yaml", "*/*/config.yaml")
    # The rounds of an experiment have folders of their own inside it; they are no runs.
    found = sorted(path.parent for pattern in below for path in folder.glob(pattern))
    found = [path for path in found if path.parent not in found]
    if len(found) > MOST_RUNS:
        raise NotAnExperiment(f"{folder} holds {len(found)} runs, at most {MOST_RUNS} can be shown at once; give fewer")
    return found or [folder]

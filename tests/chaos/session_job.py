"""A main job that trains in a session, for tests: `launcher.py --target session_job`, with this folder in PYTHONPATH.

`SESSION_PLAN` names a JSON file: a list of trainings, each with `overrides` of examples/basic.yaml, and maybe with
`weights`, `reopen` (another session from here on) or `kill` (a process that is up, once there is a checkpoint). What
came of each is a line of told.jsonl in the launch's own folder.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from omegaconf import OmegaConf

from agentevolver.checkpoints import whole_checkpoints
from agentevolver.config.checks import for_verl, load
from agentevolver.errors import ConfigError, TrainingFailed
from agentevolver.run.main import prepare
from agentevolver.trainer.session import Session
from agentevolver.utils.files import append_jsonl
from agentevolver.utils.processes import RUN_ID, carriers

ROOT = Path(__file__).resolve().parents[2]


def own_megabytes() -> dict[str, float]:
    """The memory of Ray's and vLLM's processes of this run that each shares with no other, by what they are."""
    found: dict[str, float] = {}
    for one in carriers(os.environ[RUN_ID]):
        try:
            process = psutil.Process(one.pid)
            title = process.cmdline()[0].split(".")[0]
            if title.startswith(("ray::", "VLLM")):
                found[title] = round(found.get(title, 0.0) + process.memory_full_info().uss / 2**20, 1)
        except (psutil.Error, IndexError):
            continue
    return found


def step_times(folder: Path, since: float) -> list[float]:
    """When each step of this training was on disk, in seconds since it was begun."""
    path = folder / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [round(record["time"] - since, 2) for record in records if record["time"] >= since]


def kill_later(session: Session, kind: str, folder: Path) -> None:
    """Kill one of the processes that are up as soon as there is a checkpoint."""

    def wait() -> None:
        while not whole_checkpoints(folder / "checkpoints"):
            time.sleep(0.05)
        os.kill(pids[0], signal.SIGKILL)

    pids = session.processes()[kind]
    threading.Thread(target=wait, daemon=True).start()


def train(session: Session | None, wanted: dict[str, Any], common: list[str]) -> tuple[Session | None, dict[str, Any]]:
    resolved = load(ROOT / "examples" / "basic.yaml", [*wanted["overrides"], *common])
    config, settings = resolved.config, resolved.settings
    prepare(config, settings)
    if session is not None and wanted.get("reopen"):
        session.close()
        session = None
    since = time.time()
    told: dict[str, Any] = {"name": settings.experiment_dir.name, "opened": session is None}
    try:
        session = session or Session.open(for_verl(config), settings)
        if wanted.get("kill"):
            kill_later(session, wanted["kill"], settings.experiment_dir)
        weights = Path(wanted["weights"]) if wanted.get("weights") else None
        session.train(for_verl(config), settings, weights=weights)
    except (ConfigError, TrainingFailed) as error:
        told["error"] = f"{type(error).__name__}: {error}"
    told |= {"seconds": round(time.time() - since, 2), "steps": step_times(settings.experiment_dir, since)}
    told["usable"] = session is not None and session.usable
    if session is not None and session.usable:
        told["mb"] = own_megabytes()
    return session, told


def main() -> None:
    launched = Path(sys.argv[sys.argv.index("--config") + 1])
    config = OmegaConf.load(launched)
    common = [f"experiment.root={config.experiment.root}", f"env_service.env_url={config.env_service.env_url}"]
    logging.basicConfig(filename=launched.with_name("session.log"), level=logging.INFO)
    session: Session | None = None
    try:
        for wanted in json.loads(Path(os.environ["SESSION_PLAN"]).read_text()):
            session, told = train(session, wanted, common)
            append_jsonl(launched.with_name("told.jsonl"), told)
    finally:
        if session is not None:
            session.close()


if __name__ == "__main__":
    main()

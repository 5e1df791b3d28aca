"""Plans of small scripts instead of Ray and a trainer, and a launcher process that carries them out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agentevolver.config.checks import load
from agentevolver.config.environments import EnvServiceSettings
from agentevolver.config.schema import Settings
from agentevolver.config.training import RaySettings
from agentevolver.launcher.records import RunRegistry
from agentevolver.launcher.stack import JobSpec, ServiceSpec
from agentevolver.utils import net
from agentevolver.utils.processes import carriers, identify
from tests.free_ports import free_port

HERE = Path(__file__).parent
SERVICE = HERE / "fake_service.py"
DRIVER = HERE / "driver.py"


def release_ports() -> None:
    """Give back what plans have reserved: a launcher keeps its ports until its process ends, and a test's process goes
    on."""
    for holder in net._reserved.values():
        os.close(holder)
    net._reserved.clear()


def service(folder: Path, name: str, *arguments: str, port: int | None = None, **changes: Any) -> ServiceSpec:
    """A fake service; `changes` are fields of the spec."""
    chosen = port or free_port()
    argv = (
        sys.executable,
        str(SERVICE),
        f"--port={chosen}",
        f"--name={name}",
        f"--journal={folder / 'journal'}",
        *arguments,
    )
    values: dict[str, Any] = {
        "name": name,
        "argv": argv,
        "cwd": folder,
        "log": folder / "logs" / f"{name}.log",
        "health_urls": (f"http://127.0.0.1:{chosen}/healthz",),
        "ready_timeout_s": 20.0,
        "grace_s": 5.0,
        "backoff_s": (0.05,),
    }
    return ServiceSpec(**{**values, **changes})


def job(folder: Path, code: str, **changes: Any) -> JobSpec:
    """A main job that runs some Python."""
    values: dict[str, Any] = {
        "argv": (sys.executable, "-c", code),
        "cwd": folder,
        "log": folder / "logs" / "main.log",
        "grace_s": 5.0,
    }
    return JobSpec(name="main", **{**values, **changes})


@dataclass
class Launch:
    """A launcher in a process of its own that carries out a plan."""

    folder: Path
    run_id: str
    services: Sequence[ServiceSpec]
    job: JobSpec | None
    experiment: str = "experiment"
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        plan = self.folder / f"plan-{self.run_id}.json"
        specs = [_as_dict(spec) for spec in (*self.services, *([self.job] if self.job else []))]
        plan.write_text(
            json.dumps(
                {
                    "run_id": self.run_id,
                    "services": len(self.services),
                    "specs": specs,
                    "folder": str(self.folder),
                    "experiment": self.experiment,
                }
            )
        )
        with (self.folder / f"stderr-{self.run_id}").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), str(plan)], stdout=subprocess.PIPE, stderr=errors
            )

    @property
    def registry(self) -> RunRegistry:
        return RunRegistry(self.folder / "run")

    @property
    def said(self) -> str:
        """What the launcher wrote to stderr so far."""
        return (self.folder / f"stderr-{self.run_id}").read_text()

    def journal(self) -> list[str]:
        path = self.folder / "journal"
        return path.read_text().splitlines() if path.exists() else []

    def running(self) -> int:
        return len(carriers(self.run_id))

    def wait(self, timeout_s: float = 30.0) -> int:
        return self.process.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def clean(self) -> None:
        """End whatever a failed test left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for process in carriers(self.run_id):
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(f"/tmp/ae-test-{self.run_id}", ignore_errors=True)


def _as_dict(spec: JobSpec) -> dict[str, Any]:
    return {
        **spec.__dict__,
        "cwd": str(spec.cwd),
        "log": str(spec.log),
        "env": dict(spec.env),
        "withheld": sorted(spec.withheld),
    }


class Sleeper:
    """A process that sleeps until its block ends."""

    def __init__(self, **env: str) -> None:
        code = "import time; print('up', flush=True); time.sleep(600)"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, **env})
        assert self.process.stdout is not None
        self.process.stdout.readline()
        identity = identify(self.process.pid)
        assert identity is not None
        self.identity = identity

    def __enter__(self) -> Sleeper:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for a condition of the outside world."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def env_section(**changes: Any) -> EnvServiceSettings:
    return EnvServiceSettings.model_validate({"env_type": "pocket", **changes})


def ray_section(**changes: Any) -> RaySettings:
    small = {"num_cpus": 4, "dashboard": False, "object_store_memory": 100_000_000}
    return RaySettings.model_validate({**small, **changes})


@cache
def default_settings() -> Settings:
    return load(None, ["device=cpu"]).settings


@dataclass(frozen=True)
class FakeConfiguration:
    """What the launcher needs of a resolved configuration, and nothing more."""

    experiment_dir: Path
    config: DictConfig = field(default_factory=lambda: OmegaConf.create({"trainer": {"total_epochs": 1}}))
    device: str = "cpu"
    env: Mapping[str, str] = field(default_factory=lambda: {"OMP_NUM_THREADS": "1"})
    env_service: EnvServiceSettings = field(default_factory=env_section)
    ray: RaySettings = field(default_factory=ray_section)
    settings: Settings = field(default_factory=default_settings)

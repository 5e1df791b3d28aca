"""Descriptions of services: Ray head, environment service, the run's page, and the user's own services from .env.

A description is data. Creating one starts nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentevolver.config.environments import EnvServiceSettings
from agentevolver.config.training import RaySettings
from agentevolver.utils.errors import LaunchError, UsageError
from agentevolver.utils.net import LOGVIEW_PORT, LOOPBACK, http_url, take_any_port, take_port_from, take_url_from
from agentevolver.utils.processes import plain_python
from agentevolver.utils.web.access import is_loopback

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from agentevolver.config.schema import Settings
    from agentevolver.llm.settings import Role

BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class JobSpec:
    """Process that ends by itself: the main job."""

    name: str
    argv: tuple[str, ...]
    log: Path
    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    """Environment variables of the launcher that are not inherited."""
    grace_s: float = 20.0
    """Seconds between SIGTERM and SIGKILL."""
    launcher_lost: signal.Signals = signal.SIGKILL
    """Signal that the kernel sends if the launcher is killed."""

    @property
    def command(self) -> str:
        """Command line, quoted for a shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True)
class ServiceSpec(JobSpec):
    """Process that runs as long as the run, and is up when its health URLs answer."""

    title: str = ""
    """Description for people: the address and what is served."""
    health_urls: tuple[str, ...] = ()
    ready_timeout_s: float = 600.0
    grace_s: float = 10.0
    first_tries: int = 1
    """Attempts of the first start before the run fails."""
    restarts: int = 0
    """Restarts after a death; the count starts over once the service has been up for `steady_s`."""
    steady_s: float = 600.0
    backoff_s: tuple[float, ...] = BACKOFF_S
    shared: bool = False
    """If its health URLs answer already, the service is used as is (with `says_who`: only if this checkout started
    it)."""
    says_who: bool = False
    """Whether the health URL returns the launch id; the service is up once that is this launch's."""
    preloaded: bool = False
    """Whether a recipe's service is forked from the process that has imported everything, if there is one."""
    needed: bool = True
    """Whether the run ends if the service dies for good."""
    advice: str = ""
    """Advice for the user if the service does not come up."""
    afterwards: tuple[str, ...] = ()
    """Command that replaces the service after the main job has ended by itself. Its process leaves the run, so it must
    end by itself."""

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait before restart number `attempt`, which counts from 0."""
        return self.backoff_s[min(attempt, len(self.backoff_s) - 1)] if self.backoff_s else 0.0


@dataclass(frozen=True)
class Launch:
    """Input from which a recipe makes its services (`Recipe.services`)."""

    settings: Settings
    config: DictConfig
    target: str | None
    """Module of the main job, or None if no job is started."""
    asked: tuple[str, ...] = ()
    """Services named by `--with-NAME`. A recipe returns a service for each of these names that it defines."""
    roles: tuple[Role, ...] = ()
    """Roles of the section `llm` that the run or one of its services calls."""

    @property
    def folder(self) -> Path:
        return self.settings.experiment_dir.resolve()

    @property
    def logs(self) -> Path:
        return self.folder / "logs"


@dataclass(frozen=True)
class Services:
    """Additions of a recipe to a launch."""

    specs: tuple[ServiceSpec, ...] = ()
    """Services to start before the main job; their `env` overrides the run's."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of the run's configuration, such as addresses."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for every process of the run."""
    paths: tuple[str, ...] = ()  # files and folders that its parameters for environments name


RESTARTS = 5
# Name of the page that shows a run, and the minutes that the page stays after the run without a visitor.
LOGVIEW = "logview"
LEFT_MINUTES = 60
# Link to this Python's folder in the run's temporary folder, for Ray.
PYTHON = "python_for_ray"
_RAY_START = ("-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", "--no-monitor")
_ANY_PORT = (
    "min-worker-port",
    "max-worker-port",
    "node-manager-port",
    "object-manager-port",
    "metrics-export-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
)


@dataclass(frozen=True)
class RayHead:
    """Ray head that the run starts, and its addresses."""

    spec: ServiceSpec
    address: str
    dashboard: str | None


def ray_head(section: RaySettings, *, temp_dir: Path, logs: Path, env: Mapping[str, str]) -> RayHead:
    """Describe the run's own Ray head: free ports on loopback, files below `temp_dir`.

    Args:
        env: must contain `utils.net.ON_LOOPBACK`; otherwise Ray listens on other interfaces too.

    Raises:
        LaunchError: no port is free.
    """
    start = section.dashboard_port
    try:
        gcs, agent, client = (take_any_port() for _ in range(3))
        page = take_port_from(start) if section.dashboard and start else take_any_port()
    except OSError as error:
        raise LaunchError(str(error.strerror)) from error
    if page is None:
        raise LaunchError(f"no port is free from {start} on for Ray's dashboard: write ray.dashboard: false")
    options: dict[str, object] = {
        "port": gcs,
        "dashboard-agent-listen-port": agent,
        "ray-client-server-port": client,
        # 0 lets each process take what is free; Ray's own defaults are fixed ports, which a second cluster on the
        # machine would need too.
        **dict.fromkeys(_ANY_PORT, 0),
        "node-ip-address": LOOPBACK,
        "include-dashboard": str(section.dashboard).lower(),
        "dashboard-host": LOOPBACK,
        "dashboard-port": page,
        "num-cpus": section.num_cpus,
        "num-gpus": section.num_gpus,
        "temp-dir": temp_dir,
    }
    if section.object_store_memory is not None:
        options["object-store-memory"] = section.object_store_memory
    url, python = f"http://{LOOPBACK}:{page}" if section.dashboard else None, plain_python(temp_dir.parent / PYTHON)
    shown, pages = (f", dashboard {url}", (f"{url}/api/gcs_healthz",)) if url else ("", ())
    spec = ServiceSpec(
        name="ray",
        argv=(python, *_RAY_START, *(f"--{name}={value}" for name, value in options.items())),
        log=logs / "ray.log",
        # The whole process group is stopped, so draining would wait for a GCS that has ended already.
        env={**env, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"},
        title=f"head at {LOOPBACK}:{gcs}{shown}",
        health_urls=(f"http://{LOOPBACK}:{agent}/api/local_raylet_healthz", *pages),
        ready_timeout_s=180.0,
        # Ray waits 30 s for its own node, without a setting for it, and another process may take a port that Ray has
        # chosen (Ray 2.60).
        first_tries=3,
    )
    return RayHead(spec, f"{LOOPBACK}:{gcs}", url)


def fork_server_service(socket: Path, *, logs: Path, env: Mapping[str, str]) -> ServiceSpec:
    """Describe the fork server for the main job, the player, Ray's workers and vLLM's engine."""
    return ServiceSpec(
        name="preload",
        # Without health URLs nothing waits for it; a process that cannot reach it starts in the usual way.
        argv=(sys.executable, "-m", "agentevolver.trainer.preload", str(socket)),
        log=logs / "preload.log",
        env=env,
        title="imports once what the run's processes need, and forks them",
        needed=False,
    )


def environment_service(
    section: EnvServiceSettings,
    names: Sequence[str],
    *,
    modules: Sequence[str],
    ray_address: str,
    logs: Path,
    env: Mapping[str, str],
) -> ServiceSpec:
    """Describe the environment service at a local URL. Environments see only the secrets named in `pass_env`.

    Raises:
        UsageError: a service cannot be started at this URL.
    """
    url = section.env_url
    where = bind_options(url)
    if where is None:
        raise UsageError(f"env_service.env_url={url}: to start the service here the URL must be http://127.0.0.1:PORT")
    argv = [sys.executable, "-m", "env_service", "serve", *where, f"--ray-address={ray_address}"]
    argv += [f"--env={name}" for name in names] + [f"--env-module={module}" for module in modules]
    return ServiceSpec(
        name="env_service",
        argv=(*argv, *(f"--pass-env={name}" for name in section.pass_env)),
        log=logs / "env_service.log",
        env=env,
        title=f"{', '.join(names)} at {url}",
        says_who=True,
        health_urls=(health_url(url),),
        restarts=RESTARTS,
    )


def bind_options(url: str) -> tuple[str, str] | None:
    """Convert a URL http://LOOPBACK:PORT to a server's options --host and --port. None if the URL has another form."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return None
    if parts.scheme != "http" or not port or parts.path not in ("", "/") or not is_loopback(parts.hostname or ""):
        return None
    return f"--host={parts.hostname}", f"--port={port}"


def player_service(
    url: str, config: Path, key: str, gpus: int, *, logs: Path, env: Mapping[str, str]
) -> tuple[str, ServiceSpec]:
    """Describe the server of frozen policies on the first free port from the URL's on. Return its URL and the service.

    Args:
        config: file of the run's configuration.
        key: configuration key of the URL.
        gpus: GPUs reserved for the server; 0: it shares the trainer's.

    Raises:
        UsageError: a service cannot be started at this URL.
        LaunchError: no port is free.
    """
    if bind_options(url) is None:
        raise UsageError(f"{key}={url}: the server is started here, so the URL must be http://127.0.0.1:PORT")
    url = take_url_from(key, url).rstrip("/")
    spec = ServiceSpec(
        name="player",
        argv=(
            *(sys.executable, "-m", "agentevolver.trainer.job.frozen"),
            *("--config", str(config), "--port", str(urlsplit(url).port), "--gpus", str(gpus)),
        ),
        log=logs / "player.log",
        env=env,
        title=f"serves frozen policies, at {url}",
        says_who=True,
        preloaded=True,
        health_urls=(f"{url}/healthz",),
        # The server answers once vLLM has loaded the policy.
        ready_timeout_s=900.0,
        grace_s=30.0,  # vLLM's engine is asked to end first
        restarts=RESTARTS,
    )
    return url, spec


def logview_service(folder: Path, *, logs: Path, env: Mapping[str, str]) -> ServiceSpec:
    """Describe the page of a running experiment, on the first free port.

    Raises:
        LaunchError: no port is free.
    """
    port = take_port_from(LOGVIEW_PORT)
    if port is None:
        raise LaunchError(f"no port is free from {LOGVIEW_PORT} on for --with-logview")
    url = f"http://127.0.0.1:{port}"
    # `nice`, because the run has priority if both want a core.
    argv = ("nice", "-n", "10", sys.executable, "-m", "agentevolver.view", str(folder), f"--port={port}")
    return ServiceSpec(
        name=LOGVIEW,
        argv=argv,
        afterwards=(*argv, f"--idle-minutes={LEFT_MINUTES}"),
        log=logs / "logview.log",
        env=env,
        title=f"the page of this run, at {url}",
        says_who=True,
        health_urls=(f"{url}/healthz",),
        ready_timeout_s=90.0,
        restarts=RESTARTS,
        needed=False,
    )


def health_url(env_url: str) -> str:
    return f"{env_url.rstrip('/')}/healthz"


def is_described(name: str) -> bool:
    """Whether .env or the shell defines NAME_SCRIPT for a user's service."""
    return bool(os.environ.get(f"{_variable(name)}_SCRIPT", "").strip())


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def user_service(
    name: str, *, known: Sequence[str], logs: Path, env: Mapping[str, str], usual_health_url: str = ""
) -> ServiceSpec:
    """Describe a user's service from the variables NAME_PATH, NAME_SCRIPT and NAME_HEALTH_URL.

    Raises:
        UsageError: the name is unknown, or a variable is missing or wrong.
    """
    key = _variable(name)
    values = {part: os.environ.get(f"{key}_{part}", "").strip() for part in ("PATH", "SCRIPT", "HEALTH_URL")}
    values["HEALTH_URL"] = values["HEALTH_URL"] or usual_health_url
    missing = [f"{key}_{part}" for part, value in values.items() if not value]
    if missing:
        raise UsageError(
            f"--with-{name}: not a registered environment ({', '.join(known)}), and as a service of your own it needs "
            f"{', '.join(missing)} in .env (see example.env)"
        )
    folder = Path(values["PATH"]).expanduser()
    if not folder.is_dir():
        raise UsageError(f"--with-{name}: {key}_PATH={values['PATH']} is not a folder")
    try:
        http_url(values["HEALTH_URL"])
    except ValueError as error:
        raise UsageError(f"--with-{name}: {key}_HEALTH_URL={values['HEALTH_URL']} {error}") from error
    return ServiceSpec(
        name=name,
        argv=("bash", "-c", values["SCRIPT"]),
        cwd=folder.resolve(),
        log=logs / f"{name}.log",
        env=env,
        title=f"in {folder}, up when {values['HEALTH_URL']} answers",
        health_urls=(values["HEALTH_URL"],),
        restarts=RESTARTS,
        shared=True,
        # SIGTERM, because the service may have to clean up. The guard kills it after a few seconds.
        launcher_lost=signal.SIGTERM,
        advice=f"the command is {key}_SCRIPT in .env",
    )

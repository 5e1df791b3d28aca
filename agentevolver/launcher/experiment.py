"""Checks of an experiment's folder and of the machine before a launch. Each check takes seconds at most.

An experiment has exactly one configuration (`agentevolver.config.changes`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from agentevolver.config.changes import changes, listed
from agentevolver.launcher.options import parse
from agentevolver.launcher.records import RunRegistry
from agentevolver.launcher.stack import health_url
from agentevolver.trainer.checkpoints import check_ranks, start_of
from agentevolver.utils import recipes
from agentevolver.utils.errors import LaunchError, TrainingFailed, UsageError
from agentevolver.utils.experiments import launches
from agentevolver.utils.files import free_bytes
from agentevolver.utils.health import ServiceIdentity, examine, reachable
from agentevolver.utils.net import port_is_free
from agentevolver.utils.web.access import is_local, is_loopback

# Files that exist once something has been learned or measured.
LEARNED = (
    "metrics.jsonl",
    "checkpoints/latest_checkpointed_iteration.txt",
    "trajectories/*.jsonl",
    "validation/*.jsonl",
    "experience.sqlite",
)
LISTING = ("tasks/train.jsonl", "tasks/val.jsonl", "tasks/questions.json")


def has_learned(folder: Path) -> bool:
    """Whether the folder holds results of a run."""
    learned = any(path.stat().st_size for pattern in LEARNED for path in folder.glob(pattern))
    return learned or recipes.in_progress(folder)


def problem_with(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return why the resolved configuration must not run in this folder, or None if it may."""
    path = folder / "config.yaml"
    if not path.is_file() or not has_learned(folder):
        return None
    try:
        before = _read(path)
    except (OmegaConfBaseException, YAMLError, OSError, UnicodeDecodeError) as error:
        return (
            f"{path} cannot be read ({' '.join(str(error).split())}): inspect the file, or give "
            "trainer.experiment_name=NAME"
        )
    differing = changes(before, config) if isinstance(before, Mapping) else []
    if not differing:
        return None
    return (
        f"{folder} holds results of another configuration: {listed(differing)}; give this run a name of its own with "
        "trainer.experiment_name=NAME, or go on there all the same with --allow-changes"
    )


def refuse_mixing(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise UsageError if the folder holds results of another configuration."""
    problem = problem_with(folder, config)
    if problem is not None:
        raise UsageError(problem)


def forget_listing(folder: Path, config: Mapping[str, Any]) -> None:
    """Remove the task lists of an earlier launch without results if this configuration may list other tasks."""
    path = folder / "config.yaml"
    if not path.is_file() or has_learned(folder):
        return
    before = _read(path)
    if not isinstance(before, Mapping) or changes(before, config):
        for name in LISTING:
            (folder / name).unlink(missing_ok=True)


def last_launch(folder: Path) -> dict[str, Any]:
    """Return the record of the experiment's last launch with a yaml.

    Raises:
        UsageError: no such record can be read.
    """
    for record in launches(folder):
        try:
            if parse(record["argv"]).conf is not None:
                return record
        except (UsageError, SystemExit):
            continue
    raise UsageError(f"{folder} holds no record of a launch with a yaml: start it with the experiment's yaml")


def _read(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


logger = logging.getLogger(__name__)


MIN_FREE_GB = 2.0
OTHER_PORT = "choose another port with env_service.env_url=http://127.0.0.1:PORT"


@dataclass(frozen=True)
class Presence:
    """Owner of the environment service that the run uses. None: the run starts its own (`START`)."""

    whose: str | None = None


START = Presence()


def check_target(module: str, cwd: Path) -> None:
    """Raise UsageError if the main job's module cannot be found from `cwd`. Nothing is imported."""
    places = [str(cwd), *sys.path]
    # `importlib.util.find_spec("a.b")` would import `a`; searching part by part imports nothing.
    for part in module.split("."):
        found = PathFinder.find_spec(part, places)
        if found is None:
            raise UsageError(f"--target {module}: the module {part!r} is neither in {cwd} nor installed")
        places = list(found.submodule_search_locations or ())


def check_checkpoint(config: Mapping[str, Any]) -> None:
    """Check that training can resume from the newest checkpoint, without loading it.

    Raises:
        UsageError: the ranks could not load it, or training would start over after steps were trained.
    """
    trainer = config["trainer"]
    # A recipe's main job resumes from a file of its own.
    if recipes.in_progress(Path(config["experiment"]["dir"])):
        return
    try:
        start = start_of(trainer, Path(config["experiment"]["dir"]))
        if start.warning is not None:
            logger.warning("%s", start.warning)
        if start.checkpoint is not None:
            contents = config["actor_rollout_ref"]["actor"]["checkpoint"]["load_contents"]
            check_ranks(start.checkpoint / "actor", trainer["nnodes"] * trainer["n_gpus_per_node"], tuple(contents))
    except TrainingFailed as error:
        raise UsageError(str(error)) from error


def check_disk(folder: Path) -> None:
    """Raise LaunchError if less than `MIN_FREE_GB` are free."""
    free = free_bytes(folder) / 1e9
    if free < MIN_FREE_GB:
        raise LaunchError(
            f"{free:.1f} GB free where {folder} lies, at least {MIN_FREE_GB:g} are needed: free some, or set "
            "experiment.root"
        )


async def env_service_presence(
    env_url: str, names: Sequence[str], registry: RunRegistry, *, external: bool
) -> Presence:
    """Return the owner of the environment service that answers, or START if none does.

    A running service may be used if a launcher of this checkout started it, or if the configuration declares it: by
    `external`, or by a URL on another machine.

    Args:
        names: environments that the service must serve.

    Raises:
        LaunchError: a declared service does not answer, a running one may not be used, or the port is taken.
    """
    health = await examine(health_url(env_url))
    declared = external or not is_local(env_url)
    parts = urlsplit(env_url)
    if health.reason is None:
        return Presence(_whose(env_url, health.identity, names, registry, declared=declared))
    if declared:
        raise LaunchError(
            f"env_service.env_url={env_url} does not answer ({health.reason}); start it there, or correct the URL"
        )
    if health.reason == "connection refused" and port_is_free(parts.port or 80, parts.hostname or "127.0.0.1"):
        return START
    raise LaunchError(
        f"port {parts.port or 80} is taken by something that is not a healthy environment service ({health.reason}); "
        f"stop it, or {OTHER_PORT}"
    )


def _whose(
    env_url: str, identity: ServiceIdentity | None, names: Sequence[str], registry: RunRegistry, *, declared: bool
) -> str:
    """Describe the owner of a running environment service. Raise LaunchError if the run may not use it."""
    who = str(identity) if identity is not None else "a service that does not identify itself"
    if identity is not None and (missing := sorted(set(names) - set(identity.env_types))):
        raise LaunchError(f"{env_url} is answered by {who}, and this run needs {', '.join(missing)}: {OTHER_PORT}")
    if declared:
        return f"declared as external: {who}"
    record = registry.serving(env_url, identity)
    if record is None:
        raise LaunchError(
            f"{env_url} is answered by {who}, which no launcher of this checkout has started: "
            f"{OTHER_PORT}, or declare it with env_service.external=true"
        )
    return (
        f"which belongs to run {record.run_id} and ends with it (one of its own: "
        "env_service.env_url=http://127.0.0.1:PORT)"
    )


async def check_ray_address(address: str) -> None:
    """Check that the Ray cluster accepts connections, and warn if it is open to its network.

    Raises:
        UsageError: the address is not HOST:PORT.
        LaunchError: nothing accepts connections there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"ray.address={address} must be HOST:PORT of a Ray head, or null to start one")
    if not await reachable(host.strip("[]"), int(port)):
        raise LaunchError(
            f"ray.address={address}: no Ray head accepts connections there; start it, or set ray.address=null"
        )
    if not is_loopback(host) and os.environ.get("RAY_AUTH_MODE") != "token":
        logger.warning(
            "ray.address=%s: anybody who reaches it can run code there; close its network to others, or set "
            "RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH on all nodes before `ray start`",
            address,
        )

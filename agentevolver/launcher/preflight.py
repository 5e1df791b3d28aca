"""Preflight: checks of the machine before a launch. Starts and changes nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentevolver.config.checks import Resolved
from agentevolver.config.model import check_model, ram_bytes
from agentevolver.launcher.accelerator import examine
from agentevolver.launcher.environments import check_environments
from agentevolver.launcher.experiment import START, Presence, check_disk, check_ray_address, env_service_presence
from agentevolver.launcher.memory import check_host
from agentevolver.launcher.options import Options
from agentevolver.launcher.plan import check_services, registered_services, served_names
from agentevolver.launcher.records import RunRegistry
from agentevolver.utils.errors import LaunchError
from agentevolver.utils.files import free_bytes
from agentevolver.utils.web.access import is_local


@dataclass(frozen=True)
class Check:
    """Result of one check: what was found, and the error that a start would raise, or None."""

    name: str
    found: Sequence[str]
    problem: LaunchError | None = None


def preflight(options: Options, configuration: Resolved, registry: RunRegistry) -> tuple[list[Check], Presence]:
    """Run every check. Return the results and the owner of the environment service.

    Raises:
        UsageError: a service of `--with-NAME` cannot be started here.
    """
    folder, service = configuration.experiment_dir, configuration.env_service
    presence = START if is_local(service.env_url) else Presence("elsewhere")
    checks: list[Check] = []

    def attempt(name: str, look: Callable[[], Sequence[str]]) -> None:
        try:
            checks.append(Check(name, look()))
        except LaunchError as error:
            checks.append(Check(name, [], error))

    def disk() -> list[str]:
        check_disk(folder)
        return [f"{free_bytes(folder) / 1e9:.1f} GB free where {folder} lies"]

    def host() -> list[str]:
        model, checkpoints = configuration.model, Path(configuration.config.trainer.default_local_dir)
        if model is None or configuration.ray.address is not None:
            return []
        disk, saved = free_bytes(checkpoints), len(list(checkpoints.glob("global_step_*")))
        return check_host(configuration.config, model.size, memory=ram_bytes(), disk=disk, saved=saved)

    def environment_service() -> list[str]:
        nonlocal presence
        presence = asyncio.run(env_service_presence(service.env_url, names, registry, external=service.external))
        return [f"{service.env_url} {'is free' if presence == START else f'runs already, {presence.whose}'}"]

    def environments() -> list[str]:
        check_environments(options, configuration)
        return [", ".join(names)]

    def ray() -> list[str]:
        asyncio.run(check_ray_address(configuration.ray.address or ""))
        return [f"a head answers at {configuration.ray.address}"]

    attempt("disk", disk)
    if options.conf is not None:
        attempt("host", host)
        attempt("model", lambda: check_model(configuration.config))
    if options.conf is not None and configuration.config.trainer.device == "cuda":
        attempt("gpu", lambda: examine(configuration.config, {**os.environ, **configuration.env}))
    if options.conf is None and not registered_services(options):
        return checks, START
    names = served_names(options, configuration)
    attempt("environment service", environment_service)
    if presence == START or not is_local(service.env_url):
        check_services(options, configuration)
    if presence == START:
        attempt("environments", environments)
    if configuration.ray.address is not None:
        attempt("ray", ray)
    return checks, presence

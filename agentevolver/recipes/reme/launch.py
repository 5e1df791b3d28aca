"""The service that `--with-reme` starts beside a run."""

from __future__ import annotations

import sys

from agentevolver.config.cross_checks import check_role
from agentevolver.launcher.stack import (
    RESTARTS,
    Launch,
    Services,
    ServiceSpec,
    bind_options,
    is_described,
    user_service,
)
from agentevolver.llm.settings import Role
from agentevolver.utils.errors import ConfigError, UsageError
from env_service.registry import known_environments

NAME = "reme"


def services(launch: Launch) -> Services | None:
    """Return our service, or the user's own if .env describes one; None without `--with-reme`.

    Raises UsageError if the run does not use the service, no summariser is configured, or it cannot be started.
    """
    if NAME not in launch.asked:
        return None
    section = launch.settings.exp_manager
    health = f"{section.reme.base_url.rstrip('/')}/health"
    if is_described(NAME):
        known = sorted(known_environments())
        return Services((user_service(NAME, known=known, logs=launch.logs, env={}, usual_health_url=health),))
    if launch.target is not None and section.backend != "http":
        raise UsageError(
            f"--with-reme starts a service that the run would not use: exp_manager.backend = {section.backend} keeps "
            "the pool in the run itself; remove --with-reme, or set exp_manager.backend=http"
        )
    try:
        check_role(launch.settings, Role.SUMMARISER, outside_rollouts=True)
    except ConfigError as error:
        raise UsageError(f"--with-reme: {error}") from error
    where = bind_options(section.reme.base_url)
    if where is None:
        raise UsageError(
            f"--with-reme starts a service here, so exp_manager.reme.base_url={section.reme.base_url} must be "
            "http://127.0.0.1:PORT"
        )
    spec = ServiceSpec(
        name=NAME,
        argv=(sys.executable, "-m", "experience_manager", "serve", f"--config={launch.folder / 'config.yaml'}", *where),
        log=launch.logs / "reme.log",
        title=f"the experience service, at {section.reme.base_url}",
        says_who=True,
        health_urls=(health,),
        ready_timeout_s=180.0,
        restarts=RESTARTS,
        shared=True,
    )
    return Services((spec,))

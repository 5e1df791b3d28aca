"""Environment preflight: imports the environments of a run and checks that its splits exist."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from agentevolver.config.checks import Resolved
from agentevolver.config.environments import EnvironmentSettings
from agentevolver.launcher.options import Options
from agentevolver.launcher.plan import served_names
from agentevolver.utils.errors import LaunchError, UsageError
from agentevolver.utils.web.access import is_local
from env_service.registry import known_environments

# A slower environment is checked by the run, which lists its tasks before the engines start.
TIMEOUT_S = 60.0
# Key of a split or of a list of splits -> key of the filter.
SPLITS = {
    "data.train_split": "data.train_filter",
    "data.val_splits": "data.val_filter",
    "exp_manager.scout.split": "exp_manager.scout.filter",
}


def check_environments(options: Options, configuration: Resolved) -> None:
    """Import the environments served on this machine and list the run's splits, in a subprocess.

    Raises:
        UsageError: a class cannot be imported or hosted, or a split is missing or empty.
        LaunchError: an environment lacks something on this machine.
    """
    service = configuration.env_service
    if not is_local(service.env_url):
        return
    known = known_environments(options.env_modules)
    own = {text.partition("=")[0]: f"--env-module {text}" for text in options.env_modules}
    names = dict.fromkeys([*served_names(options, configuration), *own])
    asked = splits(configuration) if options.conf is not None else []
    for problem in _problems({name: known[name] for name in names}, [item for _, item in asked]):
        named = own.get(problem["name"]) or (
            "env_service.env_type" if problem["name"] in service.env_types else f"--with-{problem['name']}"
        )
        place = named if problem["asked"] is None else asked[problem["asked"]][0]
        raise (UsageError if problem["refused"] else LaunchError)(f"{place}: {problem['text']}")


def splits(configuration: Resolved) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (key, request to `env_service.listing`) for each split that the configuration names."""
    service = configuration.env_service
    found: list[tuple[str, Mapping[str, Any]]] = []
    for env_type in service.env_types:
        own = service.environments.get(env_type, EnvironmentSettings()).model_dump(exclude_none=True)
        unused = {"data.train_split"} if service.weight(env_type) == 0 else set()
        unused |= {"exp_manager.scout.split"} if own.get("val_splits") == [] else set()
        for place, filter_place in SPLITS.items():
            if place in unused:
                continue
            key, filter_key = (path.removeprefix("data.") for path in (place, filter_place))
            value, narrowed = own.get(key, _plain(configuration, place)), own.get(filter_key)
            narrowed = _plain(configuration, filter_place) if narrowed is None else narrowed
            where = f"env_service.environments.{env_type}.{key}" if key in own else place
            for split in value if isinstance(value, list) else [value] if value is not None else []:
                found.append((where, {"env_type": env_type, "split": split, "params": narrowed or {}}))
    return found


def _plain(configuration: Resolved, path: str) -> Any:
    value = OmegaConf.select(configuration.config, path)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _problems(classes: Mapping[str, str], lists: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the problems found by `env_service.listing`, or an empty list after a timeout."""
    request = json.dumps({"classes": classes, "lists": lists})
    # A subprocess, because an environment's import may hang or crash the interpreter.
    command = [sys.executable, "-m", "env_service.listing"]
    try:
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return []
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["without output"])[-1]
        raise UsageError(
            f"importing {', '.join(classes.values())} ends the process with status {done.returncode}: {said}"
        )
    problems: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return problems

"""Report of everything that can be known before a start: configuration, disk, shared memory, the environment
service's port, environments, GPUs and the roles' language models. Starts nothing and changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentevolver.errors import LaunchError
from agentevolver.launcher.cli import compose, read_dotenv
from agentevolver.launcher.options import Options, Parser, split_conf

if TYPE_CHECKING:
    from agentevolver.config.checks import Resolved

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Check:
    """Check of a machine: what was looked at, what was found, and whether a start would fail because of it."""

    name: str
    found: str
    works: bool = True


def main(arguments: Sequence[str], root: Path) -> int:
    """Print the report; returns 0 if nothing is wrong, 1 if something is, 2 for a wrong configuration or argument."""
    try:
        options = parser().parse_args(list(arguments))
        given = [item for item in (options.conf, *options.overrides) if item is not None]
        conf, overrides = split_conf(None, given)
        logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
        launch = Options(conf=conf, overrides=overrides)
        read_dotenv(root)
        return _report(launch, compose(launch), root, ask=not options.no_llm)
    except LaunchError as error:
        print(f"agentevolver doctor: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code


def parser() -> Parser:
    """Return the arguments of the verb."""
    made = Parser(
        prog="agentevolver doctor",
        description="Looks at this machine, a configuration and its language models. Each model is asked a few short "
        "questions, which costs a few calls.",
        allow_abbrev=False,
    )
    made.add_argument("conf", nargs="?", metavar="FILE", help="the experiment's yaml; without it the defaults")
    made.add_argument("overrides", nargs="*", metavar="key=value", help="keys that differ")
    made.add_argument("--no-llm", action="store_true", help="ask no language model")
    return made


def _report(options: Options, configuration: Resolved, root: Path, *, ask: bool) -> int:
    checks = machine(configuration, root, options)
    for check in checks:
        print(f"{'ok     ' if check.works else 'PROBLEM'} {check.name}: {check.found}")
    works = all(check.works for check in checks)
    if ask and options.conf is not None:
        from agentevolver.llm.doctor import examine, report

        findings = asyncio.run(examine(configuration.settings.llm))
        print(f"\n{report(findings)}")
        works = works and all(finding.works for finding in findings)
    return 0 if works else 1


def machine(configuration: Resolved, root: Path, options: Options) -> list[Check]:
    """Look at everything but the language models, whatever is found."""
    from agentevolver.launcher.experiment import check_disk, check_model
    from agentevolver.utils.files import free_bytes

    folder = configuration.experiment_dir
    checks = [
        _attempt("disk", lambda: check_disk(folder), f"{free_bytes(folder) / 1e9:.1f} GB free where {folder} lies"),
        shared_memory(configuration.ray.object_store_memory),
    ]
    if options.conf is None:
        return checks
    model = str(configuration.config.actor_rollout_ref.model.path)
    checks.append(_attempt("model", lambda: check_model(model), model))
    checks += _environments(configuration, root, options)
    if configuration.config.trainer.device == "cuda":
        from agentevolver.launcher.accelerator import examine

        report = examine(configuration.config, {**os.environ, **configuration.env}, ask_hub=False)
        checks += [Check("gpu", str(problem), works=False) for problem in report.problems]
        checks += [Check("gpu", line) for line in report.lines]
    return checks


def shared_memory(wanted: int | None, folder: Path = SHM) -> Check:
    """Compare what is free where Ray's object store lies with what it is to have, in bytes; None: Ray's choice."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return Check("shared memory", f"{folder} is missing: Ray's object store goes to the disk and is slow")
    found = f"{free / 1e9:.1f} GB free in {folder}"
    if wanted is not None and free < wanted:
        return Check(
            "shared memory",
            f"{found}, ray.object_store_memory={wanted} is more: make it smaller, or give a container --shm-size",
            works=False,
        )
    return Check("shared memory", found)


def _environments(configuration: Resolved, root: Path, options: Options) -> list[Check]:
    from agentevolver.launcher.environments import check_environments
    from agentevolver.launcher.experiment import START, env_service_presence
    from agentevolver.launcher.plan import served_names
    from agentevolver.launcher.records import RunRegistry

    service = configuration.env_service
    names = served_names(options, configuration)
    try:
        presence = asyncio.run(
            env_service_presence(
                service.env_url, names, RunRegistry(root / ".agentevolver" / "run"), external=service.external
            )
        )
    except LaunchError as error:
        return [Check("environment service", str(error), works=False)]
    if presence != START:
        return [Check("environment service", f"{service.env_url} runs already and serves {', '.join(names)}")]
    return [
        Check("environment service", f"{service.env_url} is free"),
        _attempt("environments", lambda: check_environments(options, configuration), ", ".join(names)),
    ]


def _attempt(name: str, look: Callable[[], None], found: str) -> Check:
    """Return what was found, or why a start would fail."""
    try:
        look()
    except LaunchError as error:
        return Check(name, str(error), works=False)
    return Check(name, found)

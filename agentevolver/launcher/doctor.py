"""`agentevolver doctor`: reports the preflight, shared memory and the language models. Starts and changes nothing."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from agentevolver.launcher.cli import load_configuration
from agentevolver.launcher.options import LauncherParser, Options, split_conf
from agentevolver.utils.errors import LaunchError
from agentevolver.utils.secrets import read_dotenv

SHM = Path("/dev/shm")


def main(arguments: Sequence[str], root: Path) -> int:
    """Print the report. Return 0 if everything works, 1 if something fails, 2 for a usage or configuration error."""
    try:
        return _report(parser().parse_args(list(arguments)), root)
    except LaunchError as error:
        print(f"agentevolver doctor: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code


def parser() -> LauncherParser:
    made = LauncherParser(
        prog="agentevolver doctor",
        description="Looks at this machine, a configuration and its language models. Each model is asked a few short "
        "questions, which costs a few calls.",
        allow_abbrev=False,
    )
    made.add_argument("conf", nargs="?", metavar="FILE", help="the experiment's yaml; without it the defaults")
    made.add_argument("overrides", nargs="*", metavar="key=value", help="keys that differ")
    made.add_argument("--no-llm", action="store_true", help="ask no language model")
    return made


def _report(arguments: argparse.Namespace, root: Path) -> int:
    from agentevolver.launcher.preflight import preflight
    from agentevolver.launcher.records import RunRegistry

    conf, overrides = split_conf(None, [item for item in (arguments.conf, *arguments.overrides) if item is not None])
    options = Options(conf=conf, overrides=overrides)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    read_dotenv(root)
    configuration = load_configuration(options)
    checks, _ = preflight(options, configuration, RunRegistry(root / ".agentevolver" / "run"))
    for check in checks:
        for line in check.found:
            print(f"ok      {check.name}: {line}")
        if check.problem is not None:
            print(f"PROBLEM {check.name}: {check.problem}")
    shared = shared_memory(configuration.ray.object_store_memory)
    print(f"{'ok     ' if shared[0] else 'PROBLEM'} shared memory: {shared[1]}")
    works = shared[0] and all(check.problem is None for check in checks)
    if conf is not None and not arguments.no_llm:
        from agentevolver.llm.doctor import examine, report

        findings = asyncio.run(examine(configuration.settings.llm))
        print(f"\n{report(findings)}")
        works = works and all(finding.works for finding in findings)
    return 0 if works else 1


def shared_memory(wanted: int | None, folder: Path = SHM) -> tuple[bool, str]:
    """Return whether an object store of `wanted` bytes fits (None: Ray chooses the size), and a line for the report."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return True, f"{folder} is missing: Ray's object store goes to the disk and is slow"
    found = f"{free / 1e9:.1f} GB free in {folder}"
    if wanted is not None and free < wanted:
        return False, (
            f"{found}, ray.object_store_memory={wanted} is more: make it smaller, or give a container --shm-size"
        )
    return True, found

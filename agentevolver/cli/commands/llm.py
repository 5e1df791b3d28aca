"""Command line of the language models: `python -m agentevolver.llm doctor --conf FILE [key=value ...]`.

Exit codes: 0 every role works, 1 a role fails, 2 wrong configuration, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    from agentevolver.utils.terminal import guard_output

    guard_output()
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.llm", description="The language models of a run's roles."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="ask each role once: what works, how long it takes, what it costs, which limits it names (costs a few "
        "calls)",
    )
    doctor.add_argument(
        "--conf", type=Path, required=True, help="configuration of an experiment, as the launcher takes it"
    )
    doctor.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys that differ")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return _doctor(options.conf, options.overrides)
    except KeyboardInterrupt:
        return 130


def _doctor(conf: Path, overrides: Sequence[str]) -> int:
    from agentevolver.config.checks import load
    from agentevolver.llm.doctor import examine, report
    from agentevolver.utils.errors import ConfigError, UsageError
    from agentevolver.utils.secrets import read_dotenv

    try:
        read_dotenv(Path.cwd())
        settings = load(conf, list(overrides)).settings.llm
    except (ConfigError, UsageError) as error:
        print(f"configuration: {error}", file=sys.stderr)
        return 2
    findings = asyncio.run(examine(settings))
    print(report(findings))
    return 0 if all(finding.works for finding in findings) else 1

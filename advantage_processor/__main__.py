"""`python -m advantage_processor explain FILE [--index I]`: look at the labels and advantages of a step's
trajectories."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m advantage_processor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    explain = commands.add_parser("explain", help="print a trajectory with its labels, step rewards and advantages")
    explain.add_argument("file", type=Path, help="trajectories/step_<n>.jsonl of an experiment")
    explain.add_argument(
        "--index", type=int, help="which trajectory of the file, from 0; without it all of them are listed"
    )
    explain.add_argument("--width", type=int, default=400, help="characters of an action or observation (default 400)")
    explain.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    options = parser.parse_args(arguments)
    try:
        return _explain(options)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _explain(options: argparse.Namespace) -> int:
    from rich.console import Console

    from advantage_processor.explain import explanation, overview
    from agentevolver.utils.files import read_jsonl

    console = Console(
        force_terminal=True if options.color == "always" else None,
        no_color=options.color == "never",
        highlight=False,
        soft_wrap=False,
    )
    records = read_jsonl(options.file)
    if options.index is None:
        console.print(overview(records))
        return 0
    if not 0 <= options.index < len(records):
        raise ValueError(
            f"--index {options.index}: {options.file} holds {len(records)} trajectories, 0 to {len(records) - 1}"
        )
    console.print(explanation(records[options.index], width=options.width))
    return 0


if __name__ == "__main__":
    sys.exit(main())

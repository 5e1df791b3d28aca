"""`python -m agentevolver.view FOLDER...`: the run dashboard, as `--with-logview` starts it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from agentevolver.utils.errors import LaunchError
from agentevolver.utils.terminal import guard_output
from agentevolver.view.app import HOST, view


def main(arguments: Sequence[str]) -> int:
    guard_output()
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.view", description="Shows runs on a web page, until Ctrl-C."
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="experiments/<project>/<experiment>")
    parser.add_argument("--host", default=HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, help="port to listen on (default: the first free one from 8600 on)")
    parser.add_argument("--idle-minutes", type=float, help="end after so many minutes without a request")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        view(options.folders, options.host, options.port, idle_minutes=options.idle_minutes)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

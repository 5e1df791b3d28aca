"""`python -m agentevolver.config.reference [--out FILE]` writes docs/configuration.md anew; `--out -` prints it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agentevolver.config.reference.page import PAGE, page


def main(arguments: list[str] | None = None) -> int:
    """Write the page; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m agentevolver.config.reference", description="write the configuration reference"
    )
    parser.add_argument(
        "--out", default=str(PAGE), help="file to write, - for the console (default: docs/configuration.md)"
    )
    options = parser.parse_args(arguments)
    text = page()
    if options.out == "-":
        sys.stdout.write(text)
    else:
        Path(options.out).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

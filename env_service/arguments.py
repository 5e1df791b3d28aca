"""Command line arguments shared by commands that make environments."""

from __future__ import annotations

from argparse import ArgumentParser


def add_env_modules(parser: ArgumentParser) -> None:
    """Add the repeatable `--env-module`; `registry.resolve` reads the texts in `env_modules`."""
    parser.add_argument(
        "--env-module",
        dest="env_modules",
        action="append",
        default=[],
        metavar="NAME=PKG.MOD:CLASS",
        help="make an environment class of yours known as NAME",
    )

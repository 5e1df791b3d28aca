"""Arguments that every command has which makes environments. Imports the standard library alone, so that `--help`
answers at once."""

from __future__ import annotations

from argparse import ArgumentParser


def add_env_modules(parser: ArgumentParser) -> None:
    """Add `--env-module`, which may be repeated; the texts are in `env_modules` (`env_service.registry.resolve` reads
    them)."""
    parser.add_argument(
        "--env-module",
        dest="env_modules",
        action="append",
        default=[],
        metavar="NAME=PKG.MOD:CLASS",
        help="make an environment class of yours known as NAME",
    )

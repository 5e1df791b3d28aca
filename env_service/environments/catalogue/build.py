"""Builds a catalogue: `python -m env_service.environments.catalogue.build`.

Reads the tools of every installed source, lists the missing sources, encodes the tools, and writes the folder.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from env_service.environments.catalogue import sources
from env_service.environments.catalogue.encoder import KINDS, encoder
from env_service.environments.catalogue.index import tool_vectors
from env_service.environments.catalogue.tools import CatalogueTool, default_folder, write_catalogue

REPOSITORY = Path(__file__).resolve().parents[3]
APPWORLD_PYTHON = REPOSITORY / ".venvs" / "appworld" / "bin" / "python"
MCP_SERVERS = REPOSITORY / ".venvs" / "catalogue" / "servers.json"
_KNOWN = ("pocket", "bfcl", "appworld", "mcp")


def build(
    folder: Path,
    names: Sequence[str],
    kind: str,
    *,
    appworld_python: Path = APPWORLD_PYTHON,
    servers: Path = MCP_SERVERS,
) -> dict[str, int]:
    """Write a catalogue of some sources and return the number of tools of each; missing sources are named on stderr.

    Raises:
        EncoderUnavailable: the encoder cannot be loaded.
    """
    found: list[list[CatalogueTool]] = []
    missing: dict[str, str] = {}
    makers: dict[str, Callable[[], Iterable[CatalogueTool]]] = {
        "pocket": sources.pocket,
        "bfcl": sources.bfcl,
        "appworld": lambda: sources.appworld(appworld_python),
        "mcp": lambda: sources.mcp(servers),
    }
    for name in names:
        try:
            found.append(list(makers[name]()))
        except sources.Missing as error:
            missing[name] = str(error)
            print(f"{name}: left out: {error}", file=sys.stderr)
    tools = sources.merged(found)
    chosen = encoder(kind)
    vectors = tool_vectors(tools, chosen.encode)
    counts = dict(Counter(tool.source for tool in tools))
    write_catalogue(folder, tools, vectors, chosen.name, {"sources": counts, "missing": missing})
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see --help. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m env_service.environments.catalogue.build", description="Build the catalogue of tools."
    )
    add = parser.add_argument
    add("--out", type=Path, help="folder; default: CATALOGUE_FOLDER, else ~/.cache/agentevolver/catalogue")
    add("--source", action="append", choices=_KNOWN, help="take this source; default: all that are installed")
    add("--encoder", choices=KINDS, default="minilm")
    add("--appworld-python", type=Path, default=APPWORLD_PYTHON, help="interpreter of AppWorld's venv")
    add("--mcp", type=Path, default=MCP_SERVERS, metavar="FILE", help="configuration of MCP servers")
    options = parser.parse_args(arguments)
    folder = options.out or default_folder()
    counts = build(
        folder,
        options.source or _KNOWN,
        options.encoder,
        appworld_python=options.appworld_python,
        servers=options.mcp,
    )
    print(f"{folder}: {sum(counts.values())} tools: {', '.join(f'{name} {n}' for name, n in counts.items())}")
    return 0 if counts else 1


if __name__ == "__main__":
    sys.exit(main())

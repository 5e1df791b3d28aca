"""Sources of a catalogue's tools: PocketWorld, BFCL's functions, AppWorld's APIs, and MCP servers.

Each source returns tools under its own names; `merged` makes the names unique. If a source's package is missing,
`Missing` is raised, which the catalogue records.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from env_service.environments.bfcl.single_turn import ALL_FILES, functions, multi_turn_functions
from env_service.environments.catalogue.tools import CatalogueTool, fit_name
from env_service.environments.pocket.prompts import tool_schema
from env_service.environments.pocket.tools import TOOLS

_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_LONGEST_DESCRIPTION = 1000
_APPWORLD_DOCS = """
import json
from appworld.collections.api_docs import ApiDocCollection
print(json.dumps({app: dict(apis) for app, apis in ApiDocCollection.build().items()}, default=str))
"""


class Missing(RuntimeError):
    """A source is not installed; the message says how to install it."""


def merged(sources: Iterable[Iterable[CatalogueTool]]) -> list[CatalogueTool]:
    found: dict[str, CatalogueTool] = {}
    taken: set[str] = set()
    for source in sources:
        for tool in source:
            name = fit_name(tool.name_there)
            if name.casefold() in taken:
                name = fit_name(f"{tool.source}_{tool.name_there}", taken)
            taken.add(name.casefold())
            found[name] = CatalogueTool(name, tool.name_there, tool.source, tool.description, tool.parameters)
    return list(found.values())


def pocket() -> Iterator[CatalogueTool]:
    """Tools of PocketWorld, without `done` and `doc`, which every episode has."""
    for tool in TOOLS.values():
        if tool.name in ("done", "doc"):
            continue
        function = tool_schema(tool)["function"]
        yield CatalogueTool(tool.name, tool.name, "pocket", function["description"], function["parameters"])


def bfcl() -> Iterator[CatalogueTool]:
    """Functions of BFCL's single-turn tasks and multi-turn APIs; of equal names the one in most tasks. Raises
    Missing."""
    try:
        offered = Counter(json.dumps(doc, sort_keys=True) for file in ALL_FILES for doc in functions(file))
        of_apis = [json.dumps(doc, sort_keys=True) for doc in multi_turn_functions()]
    except RuntimeError as error:
        raise Missing(str(error)) from error
    best: dict[str, str] = {}
    for text in [*(text for text, _ in offered.most_common()), *of_apis]:
        best.setdefault(json.loads(text)["name"], text)
    for name, text in best.items():
        doc = json.loads(text)
        yield CatalogueTool(
            name, name, "bfcl", _short(doc.get("description")), json_schema(doc.get("parameters") or {})
        )


def json_schema(value: Any) -> Any:
    """Convert a schema with BFCL's types (`dict`, `float`, `tuple`, `any`) to JSON schema."""
    if isinstance(value, list):
        return [json_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: json_schema(item)
        for key, item in value.items()
        if key != "type" and not (key == "optional" and isinstance(item, bool))
    }
    kind = value.get("type")
    if isinstance(kind, str):
        kept["type"] = _JSON_TYPES.get(kind, kind)
    elif kind is not None:  # a parameter that is called `type`
        kept["type"] = json_schema(kind)
    return kept


def appworld(python: Path) -> Iterator[CatalogueTool]:
    """Public APIs of AppWorld's apps as that venv's package documents them; raises Missing."""
    if not python.is_file():
        raise Missing("AppWorld is not installed: bash env_service/environments/appworld/setup.sh")
    with tempfile.TemporaryDirectory(prefix="appworld-docs-") as root:
        environ = {"PATH": os.environ.get("PATH", ""), "HOME": root, "APPWORLD_ROOT": root}
        done = subprocess.run(
            [str(python), "-c", _APPWORLD_DOCS], env=environ, capture_output=True, text=True, timeout=300, check=False
        )
    if done.returncode != 0:
        raise Missing(f"AppWorld's API docs cannot be read: {done.stderr.strip().splitlines()[-1:]}")
    for app, apis in json.loads(done.stdout.splitlines()[-1]).items():
        for name, doc in apis.items():
            yield CatalogueTool(
                f"{app}.{name}", f"{app}.{name}", "appworld", _short(doc["description"]), _of_appworld(doc)
            )


def _of_appworld(doc: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {"string", "integer", "number", "boolean", "array", "object"}
    properties = {
        row["name"]: {"description": row["description"]} | ({"type": row["type"]} if row["type"] in kinds else {})
        for row in doc["parameters"]
    }
    required = [row["name"] for row in doc["parameters"] if row["required"]]
    return {"type": "object", "properties": properties, "required": required}


def mcp(config: Path) -> Iterator[CatalogueTool]:
    """Tools of the MCP servers in a configuration (`mcp_tools/README.md`), each started once; raises Missing."""
    try:
        from env_service.environments.mcp_tools.config import McpConfigError, load_config
        from env_service.environments.mcp_tools.env import connects_of
        from env_service.environments.mcp_tools.servers import ServerError, Servers
    except ImportError as error:
        raise Missing(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="catalogue-mcp-") as folder:
        try:
            read = load_config(config)
            servers = Servers(connects_of(read, config.parent, Path(folder)), read.start_timeout_s)
            try:
                servers.wait_started()
                found = list(servers.tools.values())
            finally:
                servers.close()
        except (McpConfigError, ServerError) as error:
            raise Missing(f"the MCP servers of {config} cannot be asked: {error}") from error
    for tool in found:
        yield CatalogueTool(tool.name, tool.name_there, f"mcp:{tool.server}", _short(tool.description), tool.schema)


def _short(text: Any) -> str:
    return " ".join(str(text or "").split())[:_LONGEST_DESCRIPTION]

"""The tools of a catalogue as data, and its folder.

The folder holds `tools.jsonl`, `vectors.npy` (one unit vector a tool, float32, same order) and `facts.json` (encoder,
tools by source, missing sources).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

FOLDER_VARIABLE = "CATALOGUE_FOLDER"
SETUP = "bash env_service/environments/catalogue/setup.sh"
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LONGEST_NAME = 64
_LONGEST_TEXT = 900


class CatalogueNotBuilt(RuntimeError):
    """The folder holds no readable catalogue."""


@dataclass(frozen=True, slots=True)
class CatalogueTool:
    """A tool: name for chat APIs, name in its world, world, description, JSON schema."""

    name: str
    name_there: str
    source: str
    description: str
    parameters: dict[str, Any]

    def schema(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def text(self) -> str:
        parameters = " ".join(words(name) for name in self.parameters.get("properties", {}))
        return f"{words(self.name_there)}. {self.description[:_LONGEST_TEXT]} ({parameters})"


@dataclass(frozen=True, slots=True)
class Catalogue:
    tools: tuple[CatalogueTool, ...]
    vectors: Vectors
    encoder: str

    def by_name(self) -> dict[str, CatalogueTool]:
        return {tool.name: tool for tool in self.tools}


def words(name: str) -> str:
    """Return the words of a name as text: `getUser_byID2` is `get user by id 2`."""
    return " ".join(word.lower() for word in _WORD.findall(name))


def fit_name(name: str, taken: Iterable[str] = ()) -> str:
    used = {other.casefold() for other in taken}
    plain = _UNFIT.sub("_", name).strip("_")[:_LONGEST_NAME] or "tool"
    found, number = plain, 2
    while found.casefold() in used:
        tail = f"_{number}"
        found, number = plain[: _LONGEST_NAME - len(tail)] + tail, number + 1
    return found


def default_folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or Path.home() / ".cache" / "agentevolver" / "catalogue")


def write_catalogue(
    folder: Path, tools: Sequence[CatalogueTool], vectors: Vectors, encoder: str, facts: dict[str, Any]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "facts.json").unlink(missing_ok=True)
    with (folder / "tools.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(tool), ensure_ascii=False) + "\n" for tool in tools)
    np.save(folder / "vectors.npy", vectors)
    told = {"encoder": encoder, "tools": len(tools), **facts}
    (folder / "facts.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def load_catalogue(folder: Path | None = None) -> Catalogue:
    """Return a folder's catalogue, read once a process; raises CatalogueNotBuilt."""
    return _load(folder or default_folder())


@lru_cache(maxsize=2)
def _load(folder: Path) -> Catalogue:
    try:
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        lines = (folder / "tools.jsonl").read_text(encoding="utf-8").splitlines()
        tools = tuple(CatalogueTool(**json.loads(line)) for line in lines)
        vectors = np.load(folder / "vectors.npy", allow_pickle=False)
    except (OSError, ValueError, TypeError) as error:
        raise CatalogueNotBuilt(
            f"there is no tool catalogue in {folder} ({error}); build one with `{SETUP}`, or name its folder with "
            f"{FOLDER_VARIABLE}"
        ) from error
    if vectors.shape[:1] != (len(tools),):
        raise CatalogueNotBuilt(
            f"{folder} holds {len(tools)} tools and {len(vectors)} vectors; build it anew: `{SETUP}`"
        )
    return Catalogue(tools, vectors.astype(np.float32, copy=False), str(facts["encoder"]))

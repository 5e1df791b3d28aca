"""Games of TextWorld by (kind, level, seed), made on demand (2 to 15 s) and cached.

Files are in `TEXTWORLD_GAMES` (default `~/.cache/agentevolver/textworld/1.7.0`), written atomically.
"""

from __future__ import annotations

import importlib
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from env_service.own_venv import is_importable, use_site

SETUP = "bash env_service/environments/textworld/setup.sh"
VERSION = "1.7.0"
_SITE = "TEXTWORLD_SITE"

LEVELS = {"coin_collector": 300, "treasure_hunter": 30, "cooking": 10, "simple": 3, "custom": 2}
"""Kinds, with their highest level."""

SPLIT_SEEDS = {"dev": range(0, 100), "test": range(100, 1000), "train": range(1000, 1_000_000)}
_ID = re.compile(r"(?P<kind>[a-z_]{1,20})\.(?P<level>[1-9]\d{0,2})\.(?P<seed>0|[1-9]\d{0,5})")

_COOKING: tuple[dict[str, Any], ...] = (
    {"recipe": 1, "take": 0, "go": 1},
    {"recipe": 1, "take": 1, "go": 1},
    {"recipe": 1, "take": 1, "go": 1, "open": True},
    {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": True},
    {"recipe": 1, "take": 1, "go": 6, "open": True, "cook": True},
    {"recipe": 2, "take": 2, "go": 6, "open": True, "cook": True, "cut": True},
    {"recipe": 3, "take": 3, "go": 6, "open": True, "cook": True, "cut": True},
    {"recipe": 3, "take": 3, "go": 9, "open": True, "cook": True, "cut": True},
    {"recipe": 4, "take": 4, "go": 12, "open": True, "cook": True, "cut": True},
    {"recipe": 5, "take": 5, "go": 12, "open": True, "cook": True, "cut": True, "drop": True},
)
"""What the levels of cooking ask for: ingredients of the recipe, of them to find, rooms, and skills."""

_CUSTOM = ((2, 3, 4), (4, 6, 8))
"""Rooms, objects and length of the quest of custom's levels: w2-o3-q4 and w4-o6-q8 of arXiv 2510.01132."""

_SIMPLE = ("dense", "balanced", "sparse")
"""How often the levels of simple give a point."""


class TextworldNotInstalled(RuntimeError):
    pass


@dataclass(frozen=True, slots=True)
class GameId:
    kind: str
    level: int
    seed: int

    @classmethod
    def read(cls, task_id: str) -> GameId:
        """Return the game of a task id `KIND.LEVEL.SEED`."""
        match = _ID.fullmatch(task_id)
        if match is None or match["kind"] not in LEVELS:
            raise ValueError(
                f"there is no TextWorld game {task_id[:80]!r}; an id reads like `treasure_hunter.5.1000`, with a kind "
                f"of {', '.join(LEVELS)}, a level and a seed below 1,000,000"
            )
        if int(match["level"]) > LEVELS[match["kind"]]:
            raise ValueError(f"{match['kind']} has levels 1 to {LEVELS[match['kind']]}; got {match['level']}")
        return cls(match["kind"], int(match["level"]), int(match["seed"]))

    @property
    def split(self) -> str:
        return next(name for name, seeds in SPLIT_SEEDS.items() if self.seed in seeds)


def task_ids(split: str, params: Mapping[str, Any] | None) -> list[str]:
    """Return the ids of a split: of each kind in `kinds` and level in `levels` the first `seeds` seeds; by default
    treasure_hunter's levels 1, 5 and 10, and 20 seeds. Raises ValueError."""
    asked = {"kinds": ["treasure_hunter"], "levels": [1, 5, 10], "seeds": 20}
    if unknown := sorted(set(params or {}) - set(asked)):
        raise ValueError(f"unknown parameter {unknown[0]!r} of textworld's tasks; known: {', '.join(asked)}")
    if split not in SPLIT_SEEDS:
        raise ValueError(f"unknown split {split!r}; textworld has: {', '.join(SPLIT_SEEDS)}")
    kinds, levels, seeds = {**asked, **(params or {})}.values()
    if not isinstance(kinds, list) or not kinds or not all(kind in LEVELS for kind in kinds):
        raise ValueError(f"kinds={kinds!r} must be a list with some of: {', '.join(LEVELS)}")
    if not isinstance(levels, list) or not levels or not all(type(level) is int for level in levels):
        raise ValueError(f"levels={levels!r} must be a list of whole numbers")
    if type(seeds) is not int or not 1 <= seeds <= 100:
        raise ValueError(f"seeds={seeds!r} must be a whole number from 1 to 100")
    first = SPLIT_SEEDS[split].start
    names = [f"{kind}.{level}.{first + i}" for kind in kinds for level in levels for i in range(seeds)]
    for name in names[::seeds]:
        GameId.read(name)
    return names


def installed() -> bool:
    use_site("textworld", _SITE, "textworld")
    return is_importable("textworld")


@cache
def package() -> Any:
    """Return the module `textworld` (2 s the first time); raises TextworldNotInstalled."""
    use_site("textworld", _SITE, "textworld")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no thread of numpy's: processes are forked from this one
    # jericho knows the scores of old games by their files, and says of every generated one that it does not know it.
    warnings.filterwarnings("ignore", message="Game '.*' is not fully supported")
    try:
        return importlib.import_module("textworld")
    except ImportError as error:
        raise TextworldNotInstalled(
            f"the textworld environment could not import `textworld` ({error}). Run `{SETUP}`, or set {_SITE} to a "
            f"site-packages folder that holds textworld {VERSION} and what it imports."
        ) from error


def game_file(game: GameId) -> Path:
    """Return a game's file, made if missing; raises TextworldNotInstalled."""
    default = Path.home() / ".cache" / "agentevolver" / "textworld" / VERSION
    folder = Path(os.environ.get("TEXTWORLD_GAMES") or default)
    target = folder / f"{game.kind}.{game.level}.{game.seed}.z8"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as scratch:
            made = _make(game, Path(scratch) / "game.z8")
            os.replace(made.with_suffix(".json"), target.with_suffix(".json"))
            os.replace(made, target)  # last: a game whose z8 is there is whole
    return target


def _make(game: GameId, target: Path) -> Path:
    package()
    generator = importlib.import_module("textworld.generator")
    options = generator.GameOptions()
    options.seeds = game.seed
    options.path = str(target)
    # Else the goal of a search spells out the whole way there.
    options.grammar.only_last_action = True
    if game.kind == "custom":
        options.nb_rooms, options.nb_objects, options.quest_length = _CUSTOM[game.level - 1]
        return Path(generator.compile_game(generator.make_game(options), options))
    _, make, _ = importlib.import_module("textworld.challenges").CHALLENGES[f"tw-{game.kind}"]
    return Path(generator.compile_game(make(_settings(game), options), options))


def _settings(game: GameId) -> dict[str, Any]:
    if game.kind == "cooking":
        split = {"train": "train", "dev": "valid", "test": "test"}[game.split]
        skills = {"open": False, "cook": False, "cut": False, "drop": False}
        return {**skills, "recipe_seed": 0, "split": split, **_COOKING[game.level - 1]}
    if game.kind == "simple":
        return {"rewards": _SIMPLE[game.level - 1], "goal": "brief", "test": game.split != "train"}
    return {"level": game.level}

"""A recipe of another distribution: found by its entry point, configured, checked and built."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = """
from pydantic import BaseModel, ConfigDict, Field

from agentevolver.utils.recipes import Recipe


class ForeignSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    every: int = Field(0, ge=0)


def check(settings, config, layers):
    from agentevolver.utils.errors import ConfigError

    if settings.recipe("foreign").every == 13:
        raise ConfigError("recipes.foreign.every = 13: write another number")


def parts(context):
    from agentevolver.trainer.parts import TrainerPart

    class Foreign(TrainerPart):
        every = context.settings.recipe("foreign").every

    return [Foreign()] if Foreign.every else []


RECIPE = Recipe(
    name="foreign",
    settings=ForeignSettings,
    check="foreign_recipe:check",
    parts="foreign_recipe:parts",
    moved={"foreign_every": "recipes.foreign.every"},
)
"""
# Prints what comes of each list of overrides: the section and the parts, or the refusal.
PROGRAM = """
import json, sys
from agentevolver.config.checks import load
from agentevolver.trainer.recipe_parts import PartContext, recipe_parts
from agentevolver.utils.errors import ConfigError

for overrides in json.loads(sys.argv[1]):
    try:
        made = load(None, ["device=cpu", *overrides])
    except ConfigError as error:
        print(json.dumps({"refused": str(error)}))
        continue
    section = made.settings.recipe("foreign")
    parts = recipe_parts(PartContext(made.settings, made.config, None))
    own = [part.every for part in parts if type(part).__name__ == "Foreign"]
    print(json.dumps({"section": section and section.model_dump(), "parts": own}))
"""


def outcomes(folder: Path | None, *overrides: list[str]) -> list[dict[str, Any]]:
    """Compose configurations in an interpreter with `folder` on its path: registrations are read once a process."""
    environment = {**os.environ, "PYTHONPATH": str(folder) if folder else ""}
    command = [sys.executable, "-c", PROGRAM, json.dumps(overrides)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A distribution with one recipe, as an installer leaves it."""
    facts = tmp_path / "foreign_recipe-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-recipe\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[agentevolver.recipes]\nforeign = foreign_recipe:RECIPE\n")
    (tmp_path / "foreign_recipe.py").write_text(MODULE)
    return tmp_path


@pytest.mark.thorough
def test_a_recipe_of_another_distribution_is_found_validated_and_built(installed: Path) -> None:
    on, off, unknown, wrong, own, moved = outcomes(
        installed,
        ["recipes.foreign.every=3"],
        [],
        ["recipes.foreign.evry=3"],
        ["recipes.foreign.every=-1"],
        ["recipes.foreign.every=13"],
        ["foreign_every=3"],
    )
    assert on == {"section": {"every": 3}, "parts": [3]}
    assert off == {"section": {"every": 0}, "parts": []}
    assert "recipes.foreign.evry" in unknown["refused"] and "recipes.foreign.every" in unknown["refused"]
    assert "recipes.foreign.every" in wrong["refused"]
    assert own["refused"].endswith("recipes.foreign.every = 13: write another number")
    assert "write recipes.foreign.every" in moved["refused"]


@pytest.mark.thorough
def test_without_the_distribution_its_section_is_an_unknown_key() -> None:
    plain, refused = outcomes(None, [], ["recipes.foreign.every=3"])
    assert plain == {"section": None, "parts": []}
    assert "recipes.foreign" in refused["refused"]

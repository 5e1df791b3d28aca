"""The section `recipes`: one model for each registered recipe with settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from agentevolver.config.section import Section
from agentevolver.utils.recipes import recipes

if TYPE_CHECKING:

    class RecipesSettings(Section):
        """The section `recipes`, a field for each recipe."""

else:
    _fields: dict[str, Any] = {
        name: (recipe.settings, Field(default_factory=recipe.settings))
        for name, recipe in recipes().items()
        if recipe.settings is not None
    }
    RecipesSettings = create_model("RecipesSettings", __base__=Section, **_fields)

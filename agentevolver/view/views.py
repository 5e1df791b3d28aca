"""Views that recipes add to the page, registered by `Recipe.view`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter

from agentevolver.utils.names import imported
from agentevolver.utils.recipes import recipes
from agentevolver.view.experiment import Experiment


@dataclass(frozen=True, slots=True)
class AddedView:
    """View of a recipe.

    - `name`: of the view in the page's URL (`#/<name>`), and of its version in `/api/state`.
    - `title`, `order`: label and position of its tab (the page's own tabs: `VIEWS` in `static/app.js`).
    - `static`: folder of its script `<name>.js`, which exports `open(place)` as the page's own views do.
    - `router`: makes the routes of one run, mounted below `/api`.
    - `has_data`: whether a run's folder has data to show; otherwise the tab is hidden.
    - `version`: a text that changes whenever a run's folder may have new data.
    """

    name: str
    title: str
    order: int
    static: Path
    router: Callable[[Experiment], APIRouter]
    has_data: Callable[[Path], bool]
    version: Callable[[Path], str]


@cache
def added_views() -> tuple[AddedView, ...]:
    """Return the views of all recipes, in the order of their tabs."""
    views: list[AddedView] = [imported(one.view) for one in recipes().values() if one.view is not None]
    return tuple(sorted(views, key=lambda view: (view.order, view.name)))

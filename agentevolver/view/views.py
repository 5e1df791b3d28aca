"""Views that recipes add to the page.

A recipe describes its view by an `AddedView`. The page finds it as `VIEW` in a package of `agentevolver.view.extra`, or
under an entry point of the group `agentevolver.views`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from fastapi import APIRouter

from agentevolver.view.experiment import Experiment

GROUP = "agentevolver.views"
FOLDER = Path(__file__).parent / "extra"


@dataclass(frozen=True, slots=True)
class AddedView:
    """A view of a recipe.

    - `name`: of the view in the page's address (`#/<name>`), and of its version in `/api/state`.
    - `title`, `order`: of its tab, among the page's own tabs (`VIEWS` in `static/app.js`).
    - `static`: folder with its script `<name>.js`, which exports `open(place)` as the page's own views do.
    - `router`: makes the routes of one run, which are put below `/api`.
    - `has_data`: whether a run's folder holds something to show; its tab is hidden otherwise.
    - `version`: a text that changes whenever a run's folder may hold something new to show.
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
    # By name: the page imports no recipe, and recipes import the page.
    modules = [f"agentevolver.view.{FOLDER.name}.{found.name}" for found in pkgutil.iter_modules([str(FOLDER)])]
    views = [importlib.import_module(name).VIEW for name in modules]
    views += [entry.load() for entry in entry_points(group=GROUP)]
    return tuple(sorted(views, key=lambda view: (view.order, view.name)))

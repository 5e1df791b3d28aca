"""Skeleton of a new environment: a package that runs and passes its own tests and `check`, to be changed."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from env_service.registry import known_environments

TEMPLATES = Path(__file__).with_name("skeleton_templates")
FILES = ("__init__.py", "env.py", "demos.py", "profile.json", "test_env.py", "train.yaml")


class SkeletonError(Exception):
    """The skeleton cannot be written; the message says why."""


def write_skeleton(name: str, folder: Path) -> list[Path]:
    """Write the package `name` into `folder` and return its files; refuses to overwrite."""
    package, facts = new_package(name, folder)
    for file_name in FILES:
        (package / file_name).write_text(filled(template(file_name), facts), encoding="utf-8")
    return [package / file_name for file_name in FILES]


def new_package(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Create the folder of a package and return it with the values for templates; raises SkeletonError for a bad name
    or an existing folder."""
    if not name.isidentifier() or keyword.iskeyword(name) or not name.islower():
        raise SkeletonError(f"{name!r} cannot be a package name; use lower-case letters, digits and _")
    if name in sys.stdlib_module_names or name in known_environments():
        raise SkeletonError(f"{name!r} is already the name of a Python module or of an environment; choose another")
    package = folder / name
    if package.exists():
        raise SkeletonError(f"{package} exists; choose another name or remove it")
    package.mkdir(parents=True)
    cls = "".join(part.capitalize() for part in name.split("_"))
    return package, {"name": name, "cls": cls, "title": name.replace("_", " ").capitalize()}


def template(file_name: str) -> str:
    return (TEMPLATES / f"{file_name}.template").read_text(encoding="utf-8")


def filled(text: str, facts: Mapping[str, str]) -> str:
    return Template(text).substitute(facts)

"""Print the test folders of the environments or recipes that a change concerns, one a line.

    python -m tests.changed environments [--all]
    python -m tests.changed recipes [--all]

A change is what differs from the merge base with the main branch, uncommitted files included; on the main branch
itself, from its newest commit of more than a day ago. TESTS_SINCE names another revision. A folder is concerned if one
of its files changed, one of a folder that it imports, or one that all of its kind stand on. Where git cannot tell, all
are concerned.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentevolver.utils.recipes import FOLDER as RECIPES
from env_service.registry import FOLDERS, environment_folders

ROOT = Path(__file__).parents[1]
SHARED = ("conftest.py", "tests/conftest.py", "pyproject.toml", "requirements/")


@dataclass(frozen=True)
class Kind:
    """Folders of one kind: where they lie, what each imports of the others, and what all of them stand on."""

    place: Path
    imports: dict[str, set[str]]
    contract: tuple[str, ...]

    def concerned(self, files: list[str] | None) -> set[str]:
        """Return the names of the folders that changed files concern; None: nobody knows what changed."""
        inside = f"{self.place.relative_to(ROOT)}/"
        if files is None or any(file.startswith(self.contract) for file in files if not file.startswith(inside)):
            return set(self.imports)
        found = {file.removeprefix(inside).partition("/")[0] for file in files if file.startswith(inside)}
        while more := {name for name, used in self.imports.items() if used & found} - found:
            found |= more
        return found & set(self.imports)


def kinds() -> dict[str, Kind]:
    """Return the kinds by name."""
    environments = {folder.path.name: set(folder.imports) for folder in environment_folders()}
    contract = ("env_service/", "agentevolver/utils/", "tests/env_service/", "task_manager/actions", *SHARED)
    recipes = {path.parent.name: set[str]() for path in RECIPES.glob("*/recipe.py")}
    core = ("agentevolver/", "advantage_processor/pipeline", "experience_manager/", "task_manager/", *SHARED)
    return {"environments": Kind(FOLDERS, environments, contract), "recipes": Kind(RECIPES, recipes, core)}


def git(*arguments: str) -> str:
    """Return what git prints; raise CalledProcessError if it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def base() -> str:
    """Return the revision to compare with."""
    if since := os.environ.get("TESTS_SINCE"):
        return since
    head = git("rev-parse", "HEAD")
    for main in ("origin/HEAD", "origin/main", "main"):
        try:
            merged = git("merge-base", "HEAD", main)
        except subprocess.CalledProcessError:
            continue
        if merged != head:
            return merged
    return git("rev-list", "-1", "--before=1 day ago", "HEAD") or git("rev-list", "--max-parents=0", "HEAD")


def changed_files() -> list[str] | None:
    """Return the files that differ from the base, or None if git cannot tell."""
    try:
        tracked = git("diff", "--name-only", "--no-renames", base(), "--")
        return [*tracked.splitlines(), *git("ls-files", "--others", "--exclude-standard").splitlines()]
    except (OSError, subprocess.CalledProcessError):
        return None


def main(arguments: list[str]) -> None:
    """Print the folders of the kind that the first argument names."""
    kind = kinds()[arguments[0]]
    for name in sorted(kind.concerned(None if "--all" in arguments else changed_files())):
        if (folder := kind.place / name / "tests").is_dir():
            print(folder.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])

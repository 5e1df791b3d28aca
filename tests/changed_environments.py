"""Print the test folders of the environments that a change concerns, one a line; `--all` prints every one.

A change is what differs from the merge base with the main branch, or from the last commit on the main branch itself,
uncommitted files included; TESTS_SINCE names another revision. An environment is concerned if a file of its folder
changed, or of a folder that it imports, or of a package that every environment stands on. Where git cannot tell, all
are concerned.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from env_service.registry import FOLDERS, environment_folders

ROOT = Path(__file__).parents[1]
INSIDE = f"{FOLDERS.relative_to(ROOT)}/"
CONTRACT = ("env_service/", "agentevolver/utils/", "agentevolver/embeddings", "tests/env_service/", "requirements/")
CONTRACT_FILES = ("conftest.py", "pyproject.toml", "task_manager/actions.py", "task_manager/profile.py")


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
    return "HEAD~1"


def changed_files() -> list[str] | None:
    """Return the files that differ from the base, or None if git cannot tell."""
    try:
        tracked = git("diff", "--name-only", "--no-renames", base(), "--")
        return [*tracked.splitlines(), *git("ls-files", "--others", "--exclude-standard").splitlines()]
    except (OSError, subprocess.CalledProcessError):
        return None


def concerned(files: list[str] | None) -> set[str]:
    """Return the names of the folders that changed files concern."""
    imports = {folder.path.name: set(folder.imports) for folder in environment_folders()}
    if files is None:
        return set(imports)
    outside = [file for file in files if not file.startswith(INSIDE)]
    if any(file.startswith(CONTRACT) or file in CONTRACT_FILES for file in outside):
        return set(imports)
    found = {file.removeprefix(INSIDE).partition("/")[0] for file in files if file.startswith(INSIDE)}
    while more := {name for name, used in imports.items() if used & found} - found:
        found |= more
    return found & set(imports)


def main() -> None:
    """Print the folders."""
    for name in sorted(concerned(None if "--all" in sys.argv[1:] else changed_files())):
        if (folder := FOLDERS / name / "tests").is_dir():
            print(folder.relative_to(ROOT))


if __name__ == "__main__":
    main()

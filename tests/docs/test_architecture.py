"""docs/architecture.md is true to the code: its tree, its contracts and its walks."""

import re
import tomllib

import pytest

from tests.docs.packages import PACKAGES, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# What issue and design allow of each path.
AIMS = {"An episode": 12, "A task": 14, "An experience": 8, "A key": 4}


def section(title):
    """The text below a heading, up to the next of its level or above."""
    (found,) = re.findall(
        rf"^(#+) {re.escape(title)}(?:: [^\n]*)?\n(.*?)(?=^#{{1,3}} |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    return found[1]


def test_every_package_of_the_first_two_levels_stands_in_the_tree():
    tree = section("The tree")
    for package in PACKAGES:
        folders = [path.parent for path in (ROOT / package).glob("*/__init__.py")]
        for folder in [ROOT / package, *folders]:
            if folder.parent.name != "env_service" or folder.name != "environments":
                assert re.search(rf"^ *{folder.name}/ ", tree, re.MULTILINE), folder


def test_every_file_of_the_tree_exists():
    for name in re.findall(r"[\w/]+\.py", section("The tree")):
        assert any(ROOT.joinpath(package).rglob(name) for package in PACKAGES), name


def test_every_contract_is_told():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    told = re.findall(r"^\* (.+)\.$", section("Rules of imports"), re.MULTILINE)
    assert told == [contract["name"].rstrip(".") for contract in project["tool"]["importlinter"]["contracts"]]


@pytest.mark.parametrize("path", AIMS)
def test_a_walk_goes_through_files_that_exist_and_are_as_many_as_it_says(path):
    (heading,) = re.findall(rf"^### {path}: (\d+) ", PAGE, re.MULTILINE)
    files = re.findall(r"^\d+\. `([\w/.]+)`", section(path), re.MULTILINE)
    assert len(files) == int(heading)
    assert not [name for name in files if not (ROOT / name).is_file()]
    if len(files) > AIMS[path]:
        assert f"The aim was {AIMS[path]}" in section(path)

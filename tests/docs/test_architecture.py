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


def contracts():
    """The contracts on imports, by their names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["name"]: contract for contract in project["tool"]["importlinter"]["contracts"]}


def modules(package):
    """The dotted names of a package's modules and packages, one level down."""
    folder = ROOT.joinpath(*package.split("."))
    found = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return {f"{package}.{path.stem}" for path in found if path.stem != "__init__"}


def test_every_contract_is_told():
    told = re.findall(r"^\* (.+)\.$", section("Rules of imports"), re.MULTILINE)
    assert told == list(contracts())


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("utils, types and errors are the ground", {"utils", "types", "errors"}),
        ("llm, embeddings, engine", {"utils", "types", "errors", "commands"}),
        ("env_service stands alone", {"utils", "embeddings"}),
        (
            "The managers import the ground",
            {"utils", "types", "errors", "commands", "llm", "embeddings", "message_logs"},
        ),
    ],
)
def test_a_contract_forbids_every_other_part_of_the_core(rule, allowed):
    (contract,) = (contract for name, contract in contracts().items() if name.startswith(rule))
    forbidden = {name for name in contract["forbidden_modules"] if name.startswith("agentevolver.")}
    entry_point = {"agentevolver.__main__"}
    assert forbidden == modules("agentevolver") - entry_point - {f"agentevolver.{name}" for name in allowed}


@pytest.mark.parametrize("path", AIMS)
def test_a_walk_goes_through_files_that_exist_and_are_as_many_as_it_says(path):
    (heading,) = re.findall(rf"^### {path}: (\d+) ", PAGE, re.MULTILINE)
    files = re.findall(r"^\d+\. `([\w/.]+)`", section(path), re.MULTILINE)
    assert len(files) == int(heading)
    assert not [name for name in files if not (ROOT / name).is_file()]
    if len(files) > AIMS[path]:
        assert f"The aim was {AIMS[path]}" in section(path)

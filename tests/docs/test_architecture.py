"""The contracts on imports have no exception and forget no part of the code."""

import re
import tomllib

import pytest

from tests.docs.packages import ROOT


def contracts():
    """The contracts on imports, by their names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["name"]: contract for contract in project["tool"]["importlinter"]["contracts"]}


def modules(package):
    """The dotted names of a package's modules and packages, one level down."""
    folder = ROOT.joinpath(*package.split("."))
    found = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return {f"{package}.{path.stem}" for path in found if path.stem != "__init__"}


# The contract of the recipes, whose folder may be removed, names this whole set.
CORE = modules("agentevolver") - {"agentevolver.__main__", "agentevolver.recipes"}


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("utils and types are the ground", {"utils", "types"}),
        ("llm imports the ground", {"utils", "types", "llm", "cli"}),
        ("env_service stands alone", {"utils", "llm"}),
        ("The managers import the ground", {"utils", "types", "llm", "cli"}),
    ],
)
def test_a_contract_forbids_every_other_part_of_the_core(rule, allowed):
    (contract,) = (contract for name, contract in contracts().items() if name.startswith(rule))
    forbidden = {name for name in contract["forbidden_modules"] if re.fullmatch(r"agentevolver\.\w+", name)}
    assert forbidden == CORE - {f"agentevolver.{name}" for name in allowed}


def test_no_part_of_the_core_may_import_a_recipe():
    recipes, core = contracts()["The core imports no recipe"]["layers"]
    managers = {"task_manager", "experience_manager", "advantage_processor", "context_manager"}
    assert recipes == "(agentevolver.recipes)" and set(core.split(" : ")) == CORE | managers | {"env_service"}

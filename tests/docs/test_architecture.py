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
    entry_point = {"agentevolver.__main__"}
    assert forbidden == modules("agentevolver") - entry_point - {f"agentevolver.{name}" for name in allowed}

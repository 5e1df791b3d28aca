"""The contracts on imports have no exception and forget no part of the code."""

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

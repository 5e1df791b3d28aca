"""Modules that the documentation names exist: as a path, as `package.module`, after `python -m`."""

import re

import pytest

from agentevolver.utils.recipes import FOLDER
from tests.docs.packages import PACKAGES, ROOT

# That page is about names which another project had.
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "from_agentevolver.md"]
ENVIRONMENTS = ROOT / "env_service" / "environments"
PACKAGE = rf"(?:{'|'.join((*PACKAGES, 'benchmarks'))})"


def is_removed(path):
    """Whether a path belongs to the recipes or to an environment, and their folder is not in this checkout."""
    folder = FOLDER
    if path.is_relative_to(ENVIRONMENTS):
        folder = ENVIRONMENTS.joinpath(*path.relative_to(ENVIRONMENTS).parts[:1])
    return path.is_relative_to(folder) and not folder.is_dir()


def is_module(path):
    return is_removed(path) or path.with_suffix(".py").is_file() or path.is_dir()


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_a_module_that_is_named_exists(page):
    text = page.read_text(encoding="utf-8")
    paths = re.findall(rf"\b((?:tests/)?{PACKAGE}(?:/\w+)+\.py)\b", text)
    commands = re.findall(rf"python -m ({PACKAGE}(?:\.\w+)*)", text)
    imports = re.findall(rf"^(?:from|import) ({PACKAGE}(?:\.\w+)*)", text, re.MULTILINE)
    missing = [path for path in paths if not is_removed(ROOT / path) and not (ROOT / path).is_file()]
    missing += [name for name in commands + imports if not is_module(ROOT / name.replace(".", "/"))]
    assert not missing


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_a_symbol_that_is_named_with_its_module_exists(page):
    """`package.module.Name` and `package.module:Name`, Name with a capital."""
    text = page.read_text(encoding="utf-8")
    for module, name in re.findall(rf"\b({PACKAGE}(?:\.[a-z_]+)+)[.:]([A-Z]\w+)", text):
        path = ROOT / module.replace(".", "/")
        if is_removed(path):
            continue
        source = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        assert source.is_file() and re.search(rf"\b{name}\b", source.read_text(encoding="utf-8")), f"{module}:{name}"

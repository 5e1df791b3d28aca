"""Every module, public class and public function of the packages says what it is."""

import ast

import pytest

from tests.docs.packages import PACKAGES, ROOT

DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def without_docstring(tree):
    """The places of public definitions that say nothing; what stands inside a function is nobody's to import."""
    if not ast.get_docstring(tree):
        yield "the module"
    public = (node for node in tree.body if isinstance(node, DEFINITIONS) and not node.name.startswith("_"))
    for node in public:
        if not ast.get_docstring(node):
            yield f"{node.name}, line {node.lineno}"


@pytest.mark.thorough
@pytest.mark.parametrize("package", PACKAGES)
def test_everything_public_has_a_docstring(package):
    silent = [
        f"{path.relative_to(ROOT)}: {place}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if (text := path.read_text(encoding="utf-8")).strip()
        for place in without_docstring(ast.parse(text))
    ]
    assert not silent, "\n".join(silent)

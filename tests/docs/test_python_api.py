"""The Python API page: each block is Python, and each public name is described once."""

import ast
import re

from tests.docs.api_page import SECTIONS, definitions, page

TEXT = page()


def test_every_block_is_python_and_every_name_stands_once() -> None:
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        ast.parse(block)
    headings = re.findall(r"^###+ (.+)$", TEXT, re.MULTILINE)
    assert len(headings) == len(set(headings)) > 100


def test_every_public_name_has_a_docstring() -> None:
    for section in SECTIONS:
        for module, names in section.names.items():
            known = definitions(module)
            assert not [name for name in names if not ast.get_docstring(known[name])]

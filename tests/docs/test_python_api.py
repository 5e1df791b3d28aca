"""The Python API page: each block is Python, and each public name is described once."""

import ast
import re

import pytest

from tests.docs import api_page
from tests.docs.api_page import SECTIONS, definitions, page

TEXT = page()

SOURCE = '''
@dataclass(frozen=True)
class Thing(Base, _Hidden, total=False):
    """Thing of two
    lines.

    - `first`: which is
        told further
      here
    - `second`
    """

    first: int = 1
    _second: str = "x"

    def __init__(self, a, /, b: int = 2, *rest: str, c: dict[str, int] | None = None, **more: object) -> None:
        """Make it.

        Args:
            a: the first, which
                goes on.
            b, c: others.

        Raises:
            ValueError: never.
        """

    def _hidden(self) -> None:
        """Nobody's."""

    def silent(self) -> None: ...

    @property
    async def told(self) -> str:
        """Say."""
'''


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


def test_how_a_class_is_written(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "things.py").write_text(SOURCE)
    monkeypatch.setattr(api_page, "ROOT", tmp_path)
    text = "\n".join(api_page._described(definitions("things")["Thing"]))
    assert "@dataclass(frozen=True)\nclass Thing(Base, total=False):\n    first: int = 1\n```" in text
    assert "Thing of two lines.\n\n* `first`: which is told further here\n* `second`\n" in text
    assert (
        "def __init__(\n    self,\n    a,\n    /,\n    b: int = 2,\n    *rest: str,\n"
        "    c: dict[str, int] | None = None,\n    **more: object,\n) -> None: ..."
    ) in text
    assert "Args:\n\n* `a`: the first, which goes on.\n* `b, c`: others.\n\nRaises:\n\n* `ValueError`: never." in text
    assert "@property\nasync def told(self) -> str: ..." in text
    assert "hidden" not in text and "silent" not in text

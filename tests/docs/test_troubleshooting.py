"""docs/troubleshooting.md quotes messages that the code really has, and metrics and options that exist."""

import ast
import re

import pytest

from tests.docs.packages import PACKAGES, ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def said():
    """Every text in the source, with its fields as gaps, and install.sh."""
    texts = [(ROOT / "install.sh").read_text(encoding="utf-8")]
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    texts.append(
                        "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return texts


def messages():
    """The first cells of the tables whose head says that they hold messages."""
    for table in re.findall(r"\| message \|.*?\n\|---.*?\n((?:\|.*\n)+)", PAGE):
        for row in table.splitlines():
            found = re.match(r"\| `(.*?)` \|", row)
            assert found, row
            yield found[1]


@pytest.mark.thorough
def test_every_message_of_the_page_stands_in_the_code():
    texts, quoted = said(), list(messages())
    assert quoted
    for message in quoted:
        assert any(in_order(message.split("…"), text) for text in texts), message


def in_order(parts, text):
    """Whether a text holds some parts, one after the other."""
    place = 0
    for part in parts:
        place = text.find(part, place) + len(part)
        if place < len(part):
            return False
    return True


@pytest.mark.thorough
def test_every_metric_of_the_page_is_reported_by_the_code():
    source = "\n".join(said())
    for name in re.findall(r"`((?:rollout|exp_manager|prm)/[\w/]+)`", PAGE):
        assert name in source or name.rpartition("/")[2] in source, name

"""NOTICE lists what the locks pin, with the licences that its authors state."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"(?P<name>\S+) (?P<version>\S+) \[(?P<locks>[a-z0-9, ]+)\]: (?P<licence>.+)")


@pytest.fixture(scope="module")
def tool() -> dict[str, object]:
    before = [*sys.path]
    try:
        return runpy.run_path(str(ROOT / "requirements" / "notice.py"))
    finally:
        sys.path[:] = before


@pytest.fixture(scope="module")
def listed() -> list[re.Match[str]]:
    head, _, body = (ROOT / "NOTICE").read_text().partition("\n\n")
    found = [LINE.fullmatch(line) for line in body.splitlines()]
    assert all(found) and "requirements/notice.py" in head
    return [match for match in found if match]


def test_every_pin_of_every_lock_is_listed_and_nothing_else(tool, listed) -> None:  # type: ignore[no-untyped-def]
    hashes = runpy.run_path(str(ROOT / "requirements" / "hashes.py"))
    entries, normalised = hashes["entries"], hashes["normalised"]
    pinned = {
        (name, version, tool["label"](lock))
        for lock in tool["LOCKS"]
        for name, (version, _) in entries(lock.read_text()).items()
    }
    found = {
        (normalised(match["name"]), match["version"], lock) for match in listed for lock in match["locks"].split(", ")
    }
    here = {tool["label"](lock) for lock in tool["LOCKS"]}  # an environment that was removed took its lock along
    assert {entry for entry in found if entry[2] in here} == pinned

"""NOTICE lists what the locks pin, with the licences that its authors state."""

import re
import runpy
import sys
from importlib import metadata
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


def test_what_is_installed_states_the_licence_that_is_listed(tool, listed) -> None:  # type: ignore[no-untyped-def]
    compared = 0
    for match in listed:
        try:
            installed = metadata.distribution(match["name"])
        except metadata.PackageNotFoundError:
            continue
        if installed.version == match["version"]:
            compared += 1
            assert tool["licence"](installed.metadata.json) == match["licence"], match["name"]
    assert compared > 200


@pytest.mark.parametrize(
    ("stated", "licence"),
    [
        ({"license_expression": "MIT", "license": "text"}, "MIT"),
        (
            {"classifier": ["License :: OSI Approved", "License :: OSI Approved :: MIT License", "Topic :: X"]},
            "MIT License",
        ),
        ({"license": "\n Apache 2.0\n and a long text"}, "Apache 2.0"),
        ({"license": "UNKNOWN"}, "none named in its metadata"),
        ({"license": "x" * 101}, "none named in its metadata"),
    ],
)
def test_a_licence_is_the_most_exact_that_is_stated(tool, stated, licence) -> None:  # type: ignore[no-untyped-def]
    assert tool["licence"]({"name": "x", **stated}) == licence

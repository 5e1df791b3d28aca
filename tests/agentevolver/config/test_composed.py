"""No default changes unnoticed: what is composed is what composed.json says."""

import json

import pytest

from tests.agentevolver.config.composed import BASE, FILE, cases, compose

WANTED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found():
    return compose()


def test_every_case_is_compared():
    assert list(WANTED) == list(cases()) and len(WANTED[BASE]) > 1000


@pytest.mark.thorough
@pytest.mark.parametrize("case", WANTED)
def test_what_is_composed_is_what_it_was(found, case):
    differing = {key: (WANTED[case].get(key), found[case].get(key)) for key in {*WANTED[case], *found[case]}}
    differing = {key: pair for key, pair in differing.items() if pair[0] != pair[1]}
    assert not differing, f"{differing}; if that is meant: python tests/agentevolver/config/composed.py"

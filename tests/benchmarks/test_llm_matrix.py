"""A small part of the matrix: what a server that behaves like a real one may cost, and that nothing wrong is kept for
it."""

import pytest

from benchmarks.llm_matrix import ACTIVITIES, Cell, measure, missed, parse

CELL = {"units": 10, "survived": 10, "kept": 10, "right": 10}


@pytest.mark.recipe("offline")
@pytest.mark.environment("pocket", "gymnasium")
@pytest.mark.service
@pytest.mark.timeout(280)
def test_a_server_that_behaves_like_a_real_one_costs_little_and_nothing_wrong_is_kept(capsys):
    options = parse(["--worlds", "pocket,gymnasium", "--tempers", "calm,mild,limits", "--seeds", "6", "--show", "9"])
    table = measure(options)
    assert {key[0] for key in table} == set(ACTIVITIES) and len({key[1:] for key in table}) == 6
    told = capsys.readouterr().err
    assert all(cell.units > 0 and cell.kept > 0 for cell in table.values()), told
    assert missed(table) == [], told


def test_what_misses_its_bound_is_named():
    table = {
        ("judging", "mild", "pocket"): Cell(**CELL),
        ("judging", "mild", "mcp"): Cell(**{**CELL, "survived": 9, "kept": 9, "right": 9}),
    }
    assert missed(table) == ["judging, mild: 19 of 20 survived, not 0.98"]
    table["judging", "mild", "mcp"] = Cell(**{**CELL, "right": 5})
    assert missed(table) == ["judging, mild: 15 of 20 kept are right, not 0.9"]
    assert missed({("questioning", "mild", "mcp"): Cell()}) == []

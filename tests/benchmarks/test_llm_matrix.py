"""A small part of the matrix: what a server that behaves like a real one may cost, and that nothing wrong is kept for
it."""

import pytest

from benchmarks.llm_matrix import ACTIVITIES, BOUNDS, Cell, markdown, measure, missed, parse

CELL = {"units": 10, "survived": 10, "kept": 10, "right": 10}


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


def test_the_table_has_a_part_for_each_activity_with_a_column_for_each_world():
    cell = Cell(**CELL, calls=25, tokens=15_000)
    text = markdown({(activity, "mild", world): cell for activity in ACTIVITIES for world in ("mcp", "bfcl")})
    assert text.count("| mild | 1.00 / 1.00 / 10 at 2.5, 1.5k | 1.00 / 1.00 / 10 at 2.5, 1.5k |") == 4
    assert "| judging | bfcl | mcp |" in text
    assert Cell().shown() == "-" and "nothing kept" in Cell(units=3).shown()


def test_calm_is_always_measured_first():
    assert parse(["--tempers", "limits"]).tempers == ["calm", "limits"] and set(BOUNDS) == {"mild", "limits"}

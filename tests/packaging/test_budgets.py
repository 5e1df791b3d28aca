"""The ratchet of budgets.toml: ceilings never rise by themselves, and are rewritten without touching the rest."""

import runpy
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

BUDGETS = runpy.run_path(str(Path(__file__).parents[1] / "budgets.py"))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_ceiling_follows_a_shrinking_count_once(count: int, ceiling: int) -> None:
    after = BUDGETS["lowered"](count, ceiling)
    assert after <= ceiling and (count > ceiling or count <= after)
    assert (after < ceiling) <= (0 < count < 0.95 * ceiling)
    assert BUDGETS["lowered"](count, after) == after


def test_a_rewritten_file_keeps_its_comments() -> None:
    text = '# why = 1\n[tokens]\n"a/b" = 10  # aim 5\nc = 7\n\n[other]\nc = 1.5\n'
    after = BUDGETS["written"](text, {"tokens": {"a/b": 9, "c": 7}, "other": {"c": 0.7}})
    assert after == text.replace("10", "9").replace("1.5", "0.7")
    assert tomllib.loads(after)["other"] == {"c": 0.7}


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("agentevolver/trainer/job/main.py", "agentevolver"),
        ("agentevolver/recipes/seal/parts.py", "agentevolver/recipes"),
        ("agentevolver/recipes/seal/tests/test_parts.py", None),
        ("env_service/environments/calc/env.py", "env_service/environments"),
        ("env_service/hosting/pool.py", "env_service"),
        ("env_service/environments/calc/README.md", None),
        ("docs/index.md", "docs"),
        ("tests/run.sh", None),
        ("tests/packaging/test_budgets.py", "tests"),
        ("launcher.py", None),
    ],
)
def test_a_file_counts_for_one_package(path: str, package: str | None) -> None:
    assert BUDGETS["place"](path) == package

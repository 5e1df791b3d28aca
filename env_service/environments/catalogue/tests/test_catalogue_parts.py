"""The catalogue's parts: names, search, what is learnt, and how the queries of the benchmark were made."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_service.environments.bfcl.single_turn import is_right, reference_calls, share_right, single_turn_tasks
from env_service.environments.catalogue.index import LEARNED, best, scores, tool_vectors
from env_service.environments.catalogue.learned import Learned
from env_service.environments.catalogue.sources import json_schema, merged
from env_service.environments.catalogue.tools import (
    CatalogueNotBuilt,
    CatalogueTool,
    fit_name,
    load_catalogue,
    write_catalogue,
)


def tool(name: str, source: str = "bfcl", description: str = "") -> CatalogueTool:
    return CatalogueTool(name, name, source, description, {"type": "object", "properties": {}})


@given(st.lists(st.text(min_size=1, max_size=90), max_size=12))
def test_every_tool_gets_a_name_of_its_own_that_chat_apis_take(names: list[str]) -> None:
    taken: list[str] = []
    for name in names:
        taken.append(fit_name(name, taken))
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in taken)
    assert len({name.casefold() for name in taken}) == len(names)


def test_tools_of_one_name_are_kept_apart_by_their_worlds() -> None:
    found = merged([[tool("send.mail", "pocket")], [tool("Send_Mail"), tool("send mail"), tool("x")]])
    assert [one.name for one in found] == ["send_mail", "bfcl_Send_Mail", "bfcl_send_mail_2", "x"]
    assert [one.name_there for one in found] == ["send.mail", "Send_Mail", "send mail", "x"]


def test_bfcls_schemas_become_json_schema() -> None:
    schema = {
        "type": "dict",
        "properties": {
            "type": {"type": "string"},
            "at": {"type": "tuple", "items": {"type": "float"}},
            "optional": {"type": "any"},
        },
    }
    made = json_schema(schema)
    assert made["type"] == "object" and made["properties"]["type"] == {"type": "string"}
    assert made["properties"]["at"] == {"type": "array", "items": {"type": "number"}}
    assert made["properties"]["optional"] == {"type": "string"}


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 1000))
def test_the_best_are_those_of_a_full_sort(n: int, k: int, seed: int) -> None:
    found = np.random.default_rng(seed).integers(0, 5, n).astype(np.float32)
    assert best(found, k) == sorted(range(n), key=lambda place: (-found[place], place))[:k]


def test_an_earlier_query_lifts_its_tool_for_what_is_like_it_alone() -> None:
    vectors = np.eye(3, dtype=np.float32)
    past = vectors[2:3]
    assert scores(vectors, vectors[2], past, [0]).tolist() == pytest.approx([LEARNED, 0, 1])
    assert scores(vectors, vectors[1], past, [0]).tolist() == [0, 1, 0]


def test_a_tools_vector_is_the_mean_of_three_texts() -> None:
    def encode(texts: object) -> np.ndarray:
        assert isinstance(texts, list)
        return np.stack([np.eye(2, dtype=np.float32)[len(text) % 2] for text in texts])

    (vector,) = tool_vectors([tool("ab", description="abc")], encode)
    assert vector.sum() == pytest.approx(1.0)


def test_successes_are_counted_and_other_files_refused(tmp_path: Path) -> None:
    learned = Learned(tmp_path / "one.sqlite")
    learned.add([("a", "x"), ("a", "x"), ("b", "y")])
    assert learned.pairs() == [("a", "x", 2), ("b", "y", 1)]
    learned.close()
    (tmp_path / "other").write_text("no database at all, but a text that is long enough to be read as one" * 20)
    with pytest.raises(RuntimeError, match="delete it"):
        Learned(tmp_path / "other")


def test_a_catalogue_is_read_as_it_was_written_and_half_of_one_is_refused(tmp_path: Path) -> None:
    tools, vectors = [tool("a"), tool("b")], np.eye(2, dtype=np.float32)
    write_catalogue(tmp_path / "one", tools, vectors, "hashing-512", {})
    assert load_catalogue(tmp_path / "one").tools == tuple(tools)
    write_catalogue(tmp_path / "two", tools, vectors[:1], "hashing-512", {})
    with pytest.raises(CatalogueNotBuilt, match="2 tools and 1 vectors"):
        load_catalogue(tmp_path / "two")


def test_bfcls_checker_takes_the_reference_and_nothing_else() -> None:
    pytest.importorskip("bfcl_eval", reason="see the README of bfcl")
    tasks = single_turn_tasks()
    assert len(tasks) == 2351
    wrong = [name for name, task in tasks.items() if not is_right(task, reference_calls(task))]
    assert len(wrong) == 5  # answers that are none by the package's own checker
    for task in list(tasks.values())[::23]:
        calls = reference_calls(task)
        assert not is_right(task, []) and not is_right(task, [*calls, calls[0]])
        assert not is_right(task, [("no_such", arguments) for _, arguments in calls])
        assert share_right(task, calls[:-1]) == pytest.approx((len(calls) - 1) / len(calls), abs=0.5)
        assert not is_right(task, [(name, {**arguments, "no_such": 1}) for name, arguments in calls])

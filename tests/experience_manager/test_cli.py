"""The command line: looking at the pool, changing it, moving it."""

import json
from unittest.mock import AsyncMock

import pytest
from experience_fakes import experience, outage, record, teller

from agentevolver.cli.commands.experience_manager import main
from agentevolver.llm.embeddings import HashingEncoder
from agentevolver.utils.files import write_jsonl
from experience_manager.experience import Category, to_reme
from experience_manager.pool import Pool
from experience_manager.store import Store

HASHING = ("--set", "exp_manager.encoder.kind=hashing")


class Line:
    """Runs commands against one store."""

    def __init__(self, path, capsys):
        self.path, self._capsys = path, capsys

    def __call__(self, command, *arguments, status=0):
        code = main([command, "--store", str(self.path), *map(str, arguments)])
        out, err = self._capsys.readouterr()
        assert code == status, (code, out, err)
        return out if status == 0 else err


@pytest.fixture
def line(tmp_path, capsys):
    return Line(tmp_path / "s.sqlite", capsys)


@pytest.fixture
def filled(line):
    """Three experiences, two of them with a history."""
    line("add", *HASHING, "--when", "deleting a note", "--content", "read its doc first", "--scope", "site k7")
    with Store(line.path) as store:
        pool = Pool(store, HashingEncoder())
        used = experience(
            "sending a mail",
            "ask for the address",
            id="beef01",
            uses=4,
            successes=3,
            compared=2,
            lift_sum=0.5,
            created=1.0,
        )
        pool.put(
            [
                used,
                experience(
                    "closing a door", "push", id="beef02", category=Category.FAILURE, uses=8, successes=1, created=2.0
                ),
            ]
        )
    return line


def test_what_a_person_adds_is_pinned_found_and_shown(line):
    identifier = line(
        "add", *HASHING, "--when", "deleting a note", "--content", "read its doc first", "--scope", "site k7"
    ).strip()
    shown = json.loads(line("show", identifier[:6]))
    assert (shown["memory_id"], shown["content"], shown["author"]) == (identifier, "read its doc first", "manual")
    own = shown["metadata"]["agentevolver"]
    assert own["pinned"] is True and own["scope"] == "site k7" and shown["metadata"]["category"] == "manual"
    assert line("search", "delete the note", "--context", "here is site k7").startswith("0.")
    assert line("search", "delete the note", "--context", "here is site k8") == ""


def test_listing_sorts_filters_and_says_what_is_left_out(filled):
    best, more = filled("list", "--sort", "utility", "--limit", 1).splitlines()
    assert best.startswith("beef01") and "uses   4 utility 0.75 lift +0.25" in best and more == "... 2 more (--limit)"
    assert filled("list", "--category", "failure").startswith("beef02")
    assert filled("list", "--scope", "site k7").count("\n") == 1
    assert [json.loads(row)["memory_id"] for row in filled("list", "--json", "--limit", 2).splitlines()][1] == "beef02"
    assert filled("list", "--workspace", "empty") == ""


def test_editing_changes_texts_and_makes_them_a_persons(filled):
    out = filled("edit", "beef01", "--content", "look the address up")
    assert "sending a mail -> look the address up" in out
    shown = json.loads(filled("show", "beef01"))
    assert shown["author"] == "manual" and shown["metadata"]["freq"] == 4
    assert filled("search", "look the address up", "-k", 1).split()[1].startswith("beef01")
    assert "nothing to change" in filled("edit", "beef01", status=1)


def test_an_export_can_be_imported_elsewhere_beside_instead_or_merged(filled, tmp_path, capsys):
    dump = tmp_path / "d.jsonl"
    assert filled("export", dump) == f"{dump}: 3 experiences\n"
    other = Line(tmp_path / "other.sqlite", capsys)
    assert other("import", *HASHING, dump) == "3 imported, 0 merged into others\n"
    with Store(filled.path) as one, Store(other.path) as two:
        assert {e.id: (e.uses, e.content, e.pinned) for e in one.records("default")} == {
            e.id: (e.uses, e.content, e.pinned) for e in two.records("default")
        }
    other("add", "--when", "opening a window", "--content", "pull")
    assert other("import", dump) == "3 imported, 0 merged into others\n" and other("list").count("\n") == 4
    assert (
        other("import", "--workspace", "copy", dump).startswith("3 imported")
        and other("list", "--workspace", "copy").count("\n") == 3
    )
    assert other("import", "--replace", dump).startswith("3 imported") and other("list").count("\n") == 3
    rows = [json.loads(row) | {"memory_id": f"new{i}"} for i, row in enumerate(dump.read_text().splitlines())]
    write_jsonl(dump, rows)
    assert other("import", "--merge", dump) == "0 imported, 3 merged into others\n"


def test_an_import_that_fails_changes_nothing_and_names_the_line(filled, tmp_path):
    (tmp_path / "d.jsonl").write_text(json.dumps(to_reme(experience())) + "\n{}\n")
    assert "d.jsonl:2: when_to_use must be a text" in filled("import", "--replace", tmp_path / "d.jsonl", status=1)
    assert filled("list").count("\n") == 3


def test_a_store_that_is_not_there_is_not_made_by_looking(tmp_path, capsys):
    missing = Line(tmp_path / "none.sqlite", capsys)
    for command in (("list",), ("stats",), ("search", "x"), ("export", tmp_path / "d.jsonl"), ("delete", "a")):
        assert "there is no such store" in missing(*command, status=1)
    assert not missing.path.exists()


class Summariser:
    """Finds a lesson in everything, and approves of it."""

    def __init__(self, settings):
        self.model = teller()

    async def __aenter__(self):
        return self.model

    async def __aexit__(self, *_):
        """Nothing to close."""


def test_trajectory_files_are_distilled_into_the_store_that_is_there(filled, tmp_path, monkeypatch):
    monkeypatch.setattr("agentevolver.llm.LLM", Summariser)
    write_jsonl(tmp_path / "t.jsonl", [record(), record(number=1, score=0.0), record("t2", score=None)])
    metrics = json.loads(filled("distill", *HASHING, "--workspace", "other", tmp_path / "t.jsonl"))
    assert metrics["exp_manager/distil/stored"] == 1 and metrics["exp_manager/distil/joined"] == 2
    monkeypatch.setattr(Summariser, "__aenter__", AsyncMock(return_value=teller(success=outage())))
    lost = filled("distill", tmp_path / "t.jsonl", status=1)
    assert "1 tasks were not distilled in full" in lost and "(t1; the log says why): run the same command again" in lost

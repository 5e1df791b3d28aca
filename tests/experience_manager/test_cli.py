"""The command line: looking at the pool, changing it, moving it, serving it."""

import json
from unittest.mock import AsyncMock

import pytest
from experience_fakes import AngleEncoder, experience, ids_of, outage, record, teller

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


def test_pinning_and_unpinning_protects_from_pruning_and_no_longer(filled):
    filled("pin", "beef01", "beef02")
    assert filled("prune", "--min-uses", 4, "--min-utility", 0.5) == "0 deleted\n"
    filled("unpin", "beef01", "beef02")
    assert filled("prune", "--min-uses", 4, "--min-utility", 0.5) == "1 deleted\n"
    with Store(filled.path) as store:
        assert "beef01" in ids_of(store) and "beef02" not in ids_of(store)


def test_deleting_takes_all_or_none(filled):
    assert "no experience 'dead'" in filled("delete", "beef01", "dead", status=1)
    assert filled("list").count("\n") == 3
    assert filled("delete", "beef01", "beef02") == "2 deleted\n"
    assert filled("list").count("\n") == 1


def test_an_export_can_be_imported_elsewhere_beside_instead_or_merged(filled, tmp_path, capsys):
    dump = tmp_path / "d.jsonl"
    assert filled("export", dump) == f"{dump}: 3 experiences\n"
    other = Line(tmp_path / "other.sqlite", capsys)
    assert other("import", *HASHING, dump) == "3 imported, 0 joined to others\n"
    with Store(filled.path) as one, Store(other.path) as two:
        assert {e.id: (e.uses, e.content, e.pinned) for e in one.records("default")} == {
            e.id: (e.uses, e.content, e.pinned) for e in two.records("default")
        }
    other("add", "--when", "opening a window", "--content", "pull")
    assert other("import", dump) == "3 imported, 0 joined to others\n" and other("list").count("\n") == 4
    assert (
        other("import", "--workspace", "copy", dump).startswith("3 imported")
        and other("list", "--workspace", "copy").count("\n") == 3
    )
    assert other("import", "--replace", dump).startswith("3 imported") and other("list").count("\n") == 3
    rows = [json.loads(row) | {"memory_id": f"new{i}"} for i, row in enumerate(dump.read_text().splitlines())]
    write_jsonl(dump, rows)
    assert other("import", "--merge", dump) == "0 imported, 3 joined to others\n"


def test_an_import_that_fails_changes_nothing_and_names_the_line(filled, tmp_path):
    (tmp_path / "d.jsonl").write_text(json.dumps(to_reme(experience())) + "\n{}\n")
    assert "d.jsonl:2: when_to_use must be a text" in filled("import", "--replace", tmp_path / "d.jsonl", status=1)
    assert filled("list").count("\n") == 3


def test_a_store_whose_encoder_is_not_known_asks_for_settings(line):
    with Store(line.path) as store:
        Pool(store, AngleEncoder()).put([experience()])
    assert "holds vectors of angle: say how to get at it with --settings" in line("search", "x", status=2)
    assert line("list").count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list",), "nothing says where the store is"),
        (("list", "--set", "exp_manager.train_rollout_mode=mixed"), "needs reme.enable_context_generator"),
        (("list", "--settings", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_a_wrong_configuration_ends_with_status_2_and_one_line(capsys, arguments, words):
    assert main(list(arguments)) == 2
    err = capsys.readouterr().err
    assert words in err and err.startswith("configuration: ") and err.count("\n") == 1


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


def test_stats_say_what_is_there(filled):
    out = filled("stats")
    assert "vectors of hashing-512 (512) over when_to_use+content" in out
    assert "workspace default: 3 experiences, 1 pinned" in out
    assert "1 success, 1 failure, 1 manual" in out
    assert "used: 2 experiences, 12 times, 0.33 of them successful, lift +0.25" in out

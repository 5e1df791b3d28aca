"""The store: inserts, searches, edits, deletions, counters, and several views of one file."""

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from experience_fakes import SMALL, STAMP, AngleEncoder, experience, ids_of, insert
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.embeddings import HashingEncoder
from experience_manager import index as snapshots
from experience_manager.database import Database, Stamp
from experience_manager.errors import (
    EncoderMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreUnwritable,
    UnknownExperience,
)
from experience_manager.experience import Category
from experience_manager.index import Where
from experience_manager.pool import Pool
from experience_manager.store import Count, Store

WORDS = (
    "open",
    "close",
    "read",
    "write",
    "delete",
    "move",
    "copy",
    "find",
    "list",
    "send",
    "note",
    "file",
    "mail",
    "folder",
)


def texts(count):
    return [
        experience(
            f"{WORDS[i % 14]} the {WORDS[(i * 5 + 3) % 14]} {i}", f"then {WORDS[(i * 3) % 14]} it {i}", id=f"e{i}"
        )
        for i in range(count)
    ]


@pytest.fixture
def pool(store):
    return Pool(store, SMALL)


def test_what_was_inserted_is_there_again_after_closing(tmp_path):
    records = [replace(e, workspace="default", created=1e9, modified=1e9) for e in texts(5)]
    with Store(tmp_path / "s.sqlite") as store:
        insert(store, *records)
    with Store(tmp_path / "s.sqlite", create=False) as store:
        assert store.records("default") == records and store.workspaces() == {"default": 5}
        assert store.stamp == STAMP
        store.check()


def test_search_finds_the_nearest_first_with_their_cosines(pool):
    pool.put(texts(30))
    hits = pool.search("open the note 2\nthen mail it 2", 4)
    query = SMALL.encode(["open the note 2\nthen mail it 2"])[0]
    cosines = {e.id: float(SMALL.encode([e.embedded_text("when_to_use+content")])[0] @ query) for e in texts(30)}
    assert [hit.experience.id for hit in hits] == sorted(cosines, key=lambda i: -cosines[i])[:4]
    assert [hit.similarity for hit in hits] == pytest.approx(sorted(cosines.values())[::-1][:4], abs=1e-5)


def test_fewer_than_k_are_found_where_there_are_fewer_and_none_where_there_are_none(pool):
    assert pool.search("anything", 5) == []
    pool.put(texts(2))
    assert len(pool.search("anything", 5)) == 2


def test_the_similarity_floor_leaves_out_what_is_below_it(store):
    pool = Pool(store, AngleEncoder())
    pool.put([experience(f"a @{angle}", "c", id=str(angle)) for angle in (0, 30, 60, 89)])
    assert [hit.experience.id for hit in pool.search("q @0", 9, floor=0.8)] == ["0", "30"]
    assert [hit.experience.id for hit in pool.search("q @0", 9, floor=-1.0)] == ["0", "30", "60", "89"]


def test_workspaces_do_not_see_each_other(store):
    insert(store, experience(id="a"), workspace="one")
    insert(store, experience(id="a", content="other"), workspace="two")
    assert store.get("one", "a").content == "read its doc first" and store.get("two", "a").content == "other"
    assert [h.experience.content for h in Pool(store, SMALL, workspace="two").search("a note", 5)] == ["other"]
    assert store.delete("one") == 1 and store.workspaces() == {"two": 1}


def test_an_experience_of_a_place_is_found_where_that_place_is_named_in_whole_words(pool):
    pool.put([experience(id="k7", scope="Site K7"), experience(id="k77", scope="site k77"), experience(id="all")])
    found = {
        context: {h.experience.id for h in pool.search("a note", 9, Where(context=context))}
        for context in ("You are at site k7.", "site-k77 here", "")
    }
    assert found == {"You are at site k7.": {"k7", "all"}, "site-k77 here": {"k77", "all"}, "": {"all"}}
    assert len(pool.search("a note", 9)) == 3


def test_an_experience_of_a_task_is_not_found_where_that_task_is_excluded(pool):
    pool.put(
        [experience(id="own", task_ids=("t1", "t2")), experience(id="other", task_ids=("t3",)), experience(id="manual")]
    )
    found = {
        tasks: {h.experience.id for h in pool.search("a note", 9, Where(not_from=tasks))}
        for tasks in (("t1",), ("t2", "t3"), ("t9",))
    }
    assert found == {("t1",): {"other", "manual"}, ("t2", "t3"): {"manual"}, ("t9",): {"own", "other", "manual"}}


def test_an_id_that_exists_is_replaced_with_its_counters(pool):
    pool.put([experience(id="a")])
    pool.count({"a": Count(uses=3, successes=2)})
    added = pool.put([experience(id="a", content="something else")])
    assert added.ids == ("a",) and pool.store.get("default", "a").content == "something else"
    assert pool.store.get("default", "a").uses == 0 and len(pool) == 1
    assert [h.experience.content for h in pool.search("a note", 5)] == ["something else"]


def test_of_an_id_that_comes_twice_in_a_call_the_last_counts(pool):
    added = pool.put([experience(id="a", content="first"), experience(id="b"), experience(id="a", content="last")])
    assert added.ids == ("a", "b", "a") and added.inserted == 2 and len(pool) == 2
    assert pool.store.get("default", "a").content == "last"


def test_replacing_a_workspace_takes_everything_else_out_at_one_stroke(pool):
    pool.put(texts(5))
    pool.search("anything", 1)
    assert pool.replace_all([experience(id="new")]).inserted == 1
    assert ids_of(pool.store) == {"new"} and [h.experience.id for h in pool.search("a note", 9)] == ["new"]
    pool.replace_all([])
    assert len(pool) == 0


def test_a_replacement_that_fails_leaves_everything_and_it_is_still_found(pool, monkeypatch):
    pool.put(texts(5))
    pool.search("anything", 1)
    monkeypatch.setattr(
        "experience_manager.merge.Merge.write",
        lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("disk I/O error")),
    )
    with pytest.raises(StoreError, match="disk I/O error"):
        pool.replace_all([experience(id="new")])
    monkeypatch.undo()
    assert ids_of(pool.store) == {f"e{i}" for i in range(5)}
    assert len(pool.search("anything", 9)) == 5


def test_edits_are_written_and_what_is_embedded_is_found_by_its_new_text(pool):
    pool.put([*texts(20), experience(id="mine")])
    pool.count({"mine": Count(uses=4, successes=1)})
    edited = pool.edit("mine", content="zebra crossing walrus", scope="site k7")
    assert (edited.content, edited.scope, edited.uses, edited.successes) == ("zebra crossing walrus", "site k7", 4, 1)
    assert edited.modified > edited.created
    assert pool.search("zebra crossing walrus", 1)[0].experience.id == "mine"
    assert pool.search("zebra crossing walrus", 21, Where(context="site k8"))[0].experience.id != "mine"


def test_counters_and_provenance_cannot_be_edited(pool):
    pool.put([experience(id="a")])
    with pytest.raises(StoreError, match=r"uses cannot be edited; what can is author, .*when_to_use"):
        pool.edit("a", uses=5)
    with pytest.raises(StoreError, match="needs a vector"):
        pool.store.edit("default", "a", {"content": "x"}, None, None)


def test_an_id_may_be_shortened_as_long_as_it_is_the_only_one(pool):
    pool.put([experience(id="abc1"), experience(id="abc2"), experience(id="ab")])
    assert pool.store.get("default", "abc1").id == pool.store.get("default", "abc1"[:4]).id == "abc1"
    assert pool.store.get("default", "ab").id == "ab"
    for identifier, words in (
        ("abc", "more than one experience begins with 'abc'"),
        ("x", "there is no experience 'x'"),
        ("", "there is no experience ''"),
    ):
        with pytest.raises(UnknownExperience, match=words):
            pool.store.get("default", identifier)


def test_deletions_are_not_found_any_more_and_counted_once(pool):
    pool.put(texts(10))
    assert pool.store.delete("default", ["e1", "e2", "e2", "nobody"]) == 2
    assert {h.experience.id for h in pool.search("anything", 20)} == {f"e{i}" for i in range(10)} - {"e1", "e2"}


def test_counters_add_up_and_pass_over_ids_that_are_gone(pool):
    pool.put([experience(id="a"), experience(id="b")])
    pool.count({"a": Count(uses=2, successes=1, compared=1, lift=0.5), "gone": Count(uses=1)})
    pool.count({"a": Count(uses=1, successes=1, compared=1, lift=-0.25), "b": Count(uses=-1)})
    a, b = pool.store.get("default", "a"), pool.store.get("default", "b")
    assert (a.uses, a.successes, a.compared, a.lift_sum, a.utility, a.lift) == (
        3,
        2,
        2,
        0.25,
        pytest.approx(2 / 3),
        0.125,
    )
    assert b.uses == 0


def found_in(store, text, k, **options):
    return [hit.experience.id for hit in Pool(store, SMALL, **options).search(text, k)]


def test_a_store_goes_back_to_what_it_was_when_it_was_copied_and_the_later_state_is_kept_aside(tmp_path):
    with Store(tmp_path / "s.sqlite") as store, Store(tmp_path / "s.sqlite") as other:
        insert(store, experience(id="a"), experience("closing", "another", id="b"))
        store.count("default", {"a": Count(uses=2, successes=1)})
        insert(store, experience("gone", "soon", id="c"))
        store.delete("default", ["c"])
        before = store.records("default")
        store.copy_to(tmp_path / "copy.sqlite")
        insert(store, experience("later", "then", id="d"))
        store.count("default", {"a": Count(uses=5)})
        store.delete("default", ["b"])
        later = store.records("default")
        store.restore(tmp_path / "copy.sqlite", tmp_path / "aside.sqlite")
        assert store.records("default") == other.records("default") == before
        assert "d" not in found_in(store, "later", 9)
        assert [path.name for path in tmp_path.glob("copy*")] == ["copy.sqlite"], (
            "nothing is left beside a copy, which may be a checkpoint's"
        )
        store.count("default", {"a": Count(uses=7)})  # which is no change that a revision tells
        store.restore(tmp_path / "copy.sqlite", tmp_path / "counted.sqlite")
        assert store.records("default") == before
        insert(store, experience("again", "new", id="e"))
        assert found_in(store, "again", 1) == found_in(other, "again", 1) == ["e"]
    with Store(tmp_path / "aside.sqlite") as aside:
        assert aside.records("default") == later


def test_a_store_that_is_still_what_its_copy_is_is_left_alone_and_a_counter_makes_a_difference(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        insert(store, experience(id="a"), experience("closing", "another", id="b"))
        store.copy_to(tmp_path / "copy.sqlite")
        store.restore(tmp_path / "copy.sqlite", tmp_path / "aside.sqlite")
        assert not (tmp_path / "aside.sqlite").exists()
        store.count("default", {"b": Count(uses=1)})
        store.restore(tmp_path / "copy.sqlite", tmp_path / "aside.sqlite")
        assert (tmp_path / "aside.sqlite").exists() and store.get("default", "b").uses == 0
        (tmp_path / "broken.sqlite").write_bytes(b"no store at all" * 50)
        with pytest.raises(StoreCorrupt, match=r"broken\.sqlite"):
            store.restore(tmp_path / "broken.sqlite", tmp_path / "none.sqlite")
        assert not (tmp_path / "none.sqlite").exists() and len(store.records("default")) == 2


@pytest.mark.parametrize("later", [0, 1, 9])
def test_a_store_that_stays_open_elsewhere_finds_what_a_restore_has_left_however_many_changes_come_after_it(
    tmp_path, later
):
    with Store(tmp_path / "s.sqlite") as store, Store(tmp_path / "s.sqlite") as page:
        insert(store, *texts(4))
        store.copy_to(tmp_path / "copy.sqlite")
        for one in texts(9)[4:]:
            insert(store, one)
        assert len(found_in(page, "open the note", 20)) == 9
        store.restore(tmp_path / "copy.sqlite", tmp_path / "aside.sqlite")
        for number in range(later):
            insert(store, experience(f"again {number}", "new", id=f"n{number}"))
        assert set(found_in(page, "open the note", 20)) == ids_of(store) == set(found_in(store, "open the note", 20))


def test_among_equals_the_older_one_comes_first_whatever_happened_to_it(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        pool = Pool(store, SMALL, embedded_text="when_to_use")
        pool.put([experience("read it", f"advice {i}", id=f"e{i}") for i in range(6)])
        pool.edit("e1", when_to_use="something else")
        pool.edit("e1", when_to_use="read it")  # now the last row of the index in memory
        found = found_in(store, "read it", 6, embedded_text="when_to_use")
        assert found == [f"e{i}" for i in range(6)]
    with Store(tmp_path / "s.sqlite") as again:
        assert found_in(again, "read it", 6, embedded_text="when_to_use") == found


def test_pruning_drops_what_was_used_often_and_of_too_little_use_but_never_a_pinned_one(pool):
    facts = {
        "unused": {},
        "rare": {"uses": 4},
        "useless": {"uses": 10, "successes": 2},
        "useful": {"uses": 10, "successes": 5},
        "harmful": {"uses": 10, "successes": 9, "compared": 10, "lift_sum": -3.0},
        "helpful": {"uses": 10, "successes": 9, "compared": 10, "lift_sum": 3.0},
        "pinned": {"uses": 10, "pinned": True},
    }
    pool.put([experience(id=name, **values) for name, values in facts.items()])
    assert pool.store.prune("default", min_uses=5, min_utility=0.5, min_lift=None) == 1
    assert ids_of(pool.store) == set(facts) - {"useless"}
    assert pool.store.prune("default", min_uses=5, min_utility=0.0, min_lift=-0.1) == 1
    assert ids_of(pool.store) == set(facts) - {"useless", "harmful"}
    assert pool.store.prune("default", min_uses=0, min_utility=0.5, min_lift=None) == 1
    assert "unused" in ids_of(pool.store) and "rare" not in ids_of(pool.store)


def test_another_connection_sees_every_change_and_is_seen(tmp_path):
    with Store(tmp_path / "s.sqlite") as one, Store(tmp_path / "s.sqlite") as two:
        insert(one, *texts(10))
        assert len(Pool(two, SMALL).search("anything", 20)) == 10
        one.delete("default", ["e3"])
        Pool(one, SMALL).edit("e4", content="zebra walrus")
        insert(two, experience(id="late"))
        for store in (one, two):
            hits = Pool(store, SMALL).search("zebra walrus", 20)
            assert hits[0].experience.id == "e4" and {h.experience.id for h in hits} == ids_of(store)
            assert len(hits) == 10


def test_a_search_sees_through_many_deletions(pool, monkeypatch):
    monkeypatch.setattr(snapshots, "SWEEP_ABOVE", 8)
    pool.put(texts(40))
    pool.search("anything", 1)
    pool.store.delete("default", [f"e{i}" for i in range(30)])
    for _ in range(2):
        assert {h.experience.id for h in pool.search("anything", 40)} == {f"e{i}" for i in range(30, 40)}


class Model:
    """What the store should hold, as a dictionary."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[str, int]] = {}

    def apply(self, action, names, pool):
        ids = [f"n{name}" for name in names]
        if action == "put":
            pool.put([experience(content=f"text {i}", id=i) for i in ids])
            self.held |= {i: (f"text {i}", 0) for i in ids}
        elif action == "delete":
            pool.store.delete("default", ids)
            self.held = {i: v for i, v in self.held.items() if i not in ids}
        elif action == "replace":
            pool.replace_all([experience(content=f"text {i}", id=i) for i in ids])
            self.held = {i: (f"text {i}", 0) for i in ids}
        elif action == "count":
            pool.count({i: Count(uses=1) for i in set(ids)})
            self.held |= {i: (v[0], v[1] + 1) for i, v in self.held.items() if i in ids}
        else:
            for i in set(ids) & set(self.held):
                pool.edit(i, content=f"edited {i}")
                self.held[i] = (f"edited {i}", self.held[i][1])


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "delete", "replace", "count", "edit"]),
            st.lists(st.integers(0, 5), max_size=4),
            st.booleans(),
        ),
        max_size=14,
    )
)
def test_any_order_of_changes_from_two_connections_leaves_what_a_dictionary_would(tmp_path_factory, actions):
    path, model = tmp_path_factory.mktemp("s") / "s.sqlite", Model()
    with Store(path) as one, Store(path) as two:
        pools = (Pool(one, SMALL), Pool(two, SMALL))
        for action, names, second in actions:
            model.apply(action, names, pools[second])
            for pool in pools:
                hits = pool.search("text", 20)
                assert {h.experience.id: (h.experience.content, h.experience.uses) for h in hits} == model.held


def test_threads_share_one_store(pool):
    errors = []

    def work(number):
        try:
            for turn in range(10):
                pool.put([experience(content=f"{number} {turn}", id=f"{number}-{turn}")])
                pool.search("a note", 3)
                pool.count({f"{number}-{turn}": Count(uses=1)})
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and len(pool) == 40 and all(e.uses == 1 for e in pool.store.records("default"))


@pytest.mark.parametrize(
    ("encoder", "embedded_text", "words"),
    [
        (
            HashingEncoder(32),
            "when_to_use+content",
            "holds 64-dimensional vectors of hashing-64 .* but the encoder is hashing-32",
        ),
        (SMALL, "when_to_use", "over when_to_use[+]content, but .* over when_to_use"),
    ],
)
def test_another_encoders_vectors_are_refused_everywhere_and_nothing_is_changed(store, encoder, embedded_text, words):
    insert(store, *texts(3))
    other = Pool(store, encoder, embedded_text=embedded_text)
    for call in (
        lambda: other.add([experience()]),
        lambda: other.put([experience()]),
        lambda: other.replace_all([experience()]),
        lambda: other.search("a", 3),
        lambda: other.edit("e1", when_to_use="x"),
        other.require_encoder,
    ):
        with pytest.raises(EncoderMismatch, match=words):
            call()
    assert ids_of(store) == {"e0", "e1", "e2"} and store.stamp == STAMP
    assert len(Pool(store, SMALL).search("a", 9)) == 3


def test_an_encoder_of_the_same_name_whose_vectors_changed_length_is_refused(store):
    class Changed(HashingEncoder):
        name = SMALL.name

    insert(store, *texts(3))
    with pytest.raises(EncoderMismatch, match=r"the encoder is hashing-64 \(32\) .*export the store and import it"):
        Pool(store, Changed(32)).put([experience()])


def test_an_empty_store_takes_any_encoder(store):
    Pool(store, SMALL).require_encoder()
    store.require(Stamp("anything", 7, "when_to_use"))
    assert store.stamp is None


def test_a_stored_vector_of_the_wrong_length_is_named_as_damage(store):
    insert(store, *texts(3))
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE records SET vector = x'0000', revision = revision + 1 WHERE id = 'e1'")
        db.execute("UPDATE meta SET value = value + 1 WHERE key = 'revision'")
    with pytest.raises(StoreCorrupt, match="the vector of experience e1 has 2 bytes, expected 256"):
        Pool(store, SMALL).search("a", 3)
    store.delete("default", ["e1"])
    assert len(Pool(store, SMALL).search("a", 3)) == 2


@pytest.mark.parametrize(
    "content",
    [b"not a database at all, but long enough to be read as one" * 20, b"short", b"SQLite format 3\0" + b"\xff" * 500],
)
def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(tmp_path, content):
    (tmp_path / "s.sqlite").write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"s\.sqlite is damaged or no store .*import the last export"):
        Store(tmp_path / "s.sqlite")
    assert (tmp_path / "s.sqlite").read_bytes() == content


def test_somebody_elses_database_is_refused_and_left_as_it_is(tmp_path):
    with sqlite3.connect(tmp_path / "s.sqlite") as db:
        db.execute("CREATE TABLE t (x)")
    before = (tmp_path / "s.sqlite").read_bytes()
    with pytest.raises(StoreError, match="an SQLite file of something else"):
        Store(tmp_path / "s.sqlite")
    assert (tmp_path / "s.sqlite").read_bytes() == before


def test_a_store_whose_tables_another_process_makes_meanwhile_is_no_stranger(tmp_path, monkeypatch):
    path = tmp_path / "s.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")  # as far as the other has come
    assert path.stat().st_size
    look, made = Database._pragma, []

    def look_and_be_overtaken(database, name):
        value = look(database, name)
        if not made:
            made.append((name, value))
            Database(path).close()
        return value

    monkeypatch.setattr(Database, "_pragma", look_and_be_overtaken)
    with Store(path) as store:
        assert made == [("application_id", 0)] and store.records("default") == []


def test_a_store_of_a_later_version_is_refused(tmp_path):
    Store(tmp_path / "s.sqlite").close()
    with sqlite3.connect(tmp_path / "s.sqlite") as db:
        db.execute("PRAGMA user_version = 3")
    with pytest.raises(StoreError, match=r"written by a later version \(3, this one knows 2\)"):
        Store(tmp_path / "s.sqlite")


# The file as the first version of the store made it, before there were generations.
FORMER = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('revision', '3'), ('encoder', 'hashing-512'), ('dimension', '512'),
    ('embedded_text', 'when_to_use+content');
CREATE TABLE records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, workspace TEXT NOT NULL, revision INTEGER NOT NULL,
    category TEXT NOT NULL, validation_score REAL NOT NULL, confidence REAL NOT NULL, uses INTEGER NOT NULL,
    successes INTEGER NOT NULL, compared INTEGER NOT NULL, lift_sum REAL NOT NULL, support INTEGER NOT NULL,
    pinned INTEGER NOT NULL, created REAL NOT NULL, modified REAL NOT NULL, step INTEGER, author TEXT NOT NULL,
    scope TEXT NOT NULL, when_to_use TEXT NOT NULL, content TEXT NOT NULL, task_query TEXT NOT NULL,
    task_ids TEXT NOT NULL, more TEXT NOT NULL, vector BLOB NOT NULL, UNIQUE (workspace, id));
CREATE INDEX records_by_revision ON records (workspace, revision);
CREATE TABLE removed (seq INTEGER PRIMARY KEY, workspace TEXT NOT NULL, revision INTEGER NOT NULL);
CREATE INDEX removed_by_revision ON removed (workspace, revision);
INSERT INTO records VALUES (1, 'old', 'default', 2, 'success', 0.8, 0.7, 5, 3, 2, 0.5, 2, 1, 10.0, 20.0, 7,
    'model', 'kitchen', 'a tool is refused', 'read its doc first', 'make tea', '["t1"]',
    '{"trajectory_ids": ["t1_0"], "tags": ["tool"], "variants": [], "metadata": {"k": 1}}', :vector);
PRAGMA application_id = 1163415634;
PRAGMA user_version = 1;
"""


def test_a_pool_of_the_former_form_is_read_searched_and_added_to(tmp_path):
    encoder = HashingEncoder()
    vector = encoder.encode(["a tool is refused\nread its doc first"])[0].tobytes().hex()
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as db:
        db.executescript(FORMER.replace(":vector", f"x'{vector}'"))
    with Store(tmp_path / "s.sqlite", create=False) as store:
        pool = Pool(store, encoder)
        (old,) = store.records("default")
        assert (old.id, old.uses, old.step, old.pinned, old.metadata) == ("old", 5, 7, True, {"k": 1})
        assert (old.paired, old.paired_utility, old.paired_precision) == (0, 0.0, 0.0)
        store.count("default", {"old": Count(uses=1)})
        assert [hit.experience.id for hit in pool.search("a tool is refused", 3)] == ["old"]
        added = pool.add([experience("something else entirely", "do not mix them up")])
        assert added.inserted == 1 and len(pool) == 2
        store.check()
    with Store(tmp_path / "s.sqlite") as store:
        assert store.get("default", "old").uses == 6


def test_a_copy_of_the_former_form_is_restored_as_one_of_this(tmp_path):
    encoder = HashingEncoder()
    vector = encoder.encode(["a tool is refused\nread its doc first"])[0].tobytes().hex()
    with closing(sqlite3.connect(tmp_path / "copy")) as db:
        db.executescript(FORMER.replace(":vector", f"x'{vector}'"))
    with Store(tmp_path / "s.sqlite") as store:
        store.restore(tmp_path / "copy", tmp_path / "aside")
        assert store.get("default", "old").uses == 5
        store.count("default", {"old": Count(uses=1)})


def test_damage_in_the_middle_is_found_by_the_check_and_named(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        insert(store, *texts(200))
    data = bytearray((tmp_path / "s.sqlite").read_bytes())
    data[len(data) // 3 : 2 * len(data) // 3] = b"\xa5" * (2 * len(data) // 3 - len(data) // 3)
    (tmp_path / "s.sqlite").write_bytes(data)
    with Store(tmp_path / "s.sqlite") as store:
        with pytest.raises(StoreCorrupt, match="is damaged"):
            store.check()
        with pytest.raises(StoreCorrupt, match="is damaged"):
            store.records("default")


def test_a_store_that_is_not_there_is_only_made_if_that_was_wanted(tmp_path):
    (tmp_path / "empty.sqlite").touch()
    for name in ("none.sqlite", "empty.sqlite"):
        with pytest.raises(StoreError, match="there is no such store"):
            Store(tmp_path / name, create=False)
    assert not (tmp_path / "none.sqlite").exists()
    with Store(tmp_path / "empty.sqlite") as store:
        insert(store, experience())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable, match="cannot be made"):
        Store(tmp_path / "file" / "s.sqlite")


def test_while_another_writes_readers_go_on_and_writers_say_that_they_waited(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        insert(store, *texts(3))
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM records")
        with Store(tmp_path / "s.sqlite", create=False, busy_s=0.1) as second:
            assert len(Pool(second, SMALL).search("anything", 5)) == 3
            with pytest.raises(StoreBusy, match=r"stayed locked by another process for 0\.1 s; nothing was changed"):
                insert(second, experience())
            other.execute("ROLLBACK")
            insert(second, experience())
        other.close()
        assert store.workspaces() == {"default": 4}


def test_a_closed_store_says_so(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.close()
    with pytest.raises(StoreError, match=r"s\.sqlite: .*closed"):
        store.workspaces()


def test_experiences_without_a_vector_each_are_refused(store):
    with pytest.raises(ValueError, match="2 experiences but 1 vectors"):
        store.add("default", texts(2), np.zeros((1, 64), dtype=np.float32), STAMP, None)


def test_categories_and_manual_marks_come_back_as_they_were(store):
    insert(
        store,
        *(
            experience(id=category.value, category=category, pinned=category is Category.MANUAL)
            for category in Category
        ),
    )
    assert {e.id: e.category.value for e in store.records("default")} == {c.value: c.value for c in Category}
    assert [e.id for e in store.records("default") if e.pinned] == ["manual"]
    assert [e.id for e in store.records("default", limit=1, offset=1)] == ["failure"]

"""The store: inserts, searches, edits, deletions, counters, and several views of one file."""

import sqlite3
from contextlib import closing

import pytest
from experience_fakes import SMALL, STAMP, experience, ids_of, insert
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.llm.embeddings import HashingEncoder
from experience_manager.errors import (
    EncoderMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
)
from experience_manager.pool import Pool
from experience_manager.store import Count, Store

VERBS = ("open", "close", "read", "write", "delete", "move", "copy", "find", "list", "send")
WORDS = (*VERBS, "note", "file", "mail", "folder")


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


def test_counters_add_up_and_pass_over_ids_that_are_gone(pool):
    pool.put([experience(id="a"), experience(id="b")])
    pool.count({"a": Count(uses=2, successes=1, compared=1, lift=0.5), "gone": Count(uses=1)})
    pool.count({"a": Count(uses=1, successes=1, compared=1, lift=-0.25), "b": Count(uses=-1)})
    a, b = pool.store.get("default", "a"), pool.store.get("default", "b")
    assert (a.uses, a.successes, a.compared, a.lift_sum, a.lift) == (3, 2, 2, 0.25, 0.125)
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
    with pytest.raises(StoreError, match="an SQLite file of another program"):
        Store(tmp_path / "s.sqlite")
    assert (tmp_path / "s.sqlite").read_bytes() == before


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

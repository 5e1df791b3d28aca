"""Opening SQLite files that processes share."""

import sqlite3

import pytest

from agentevolver.utils.sqlite import open_shared

TABLE = "CREATE TABLE IF NOT EXISTS t (x)"


def test_two_connections_write_to_one_file_whose_folder_is_made(tmp_path):
    path = tmp_path / "folder" / "s.sqlite"
    first, second = open_shared(path, TABLE), open_shared(path, TABLE)
    first.execute("INSERT INTO t VALUES (1)")
    second.execute("INSERT INTO t VALUES (2)")
    assert first.execute("SELECT count(*) FROM t").fetchone() == (2,)
    assert first.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    first.close()
    second.close()


def test_what_is_no_database_is_an_error_and_nothing_is_left_open(tmp_path):
    (tmp_path / "s.sqlite").write_text("no database, whatever its name says" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        open_shared(tmp_path / "s.sqlite", TABLE)

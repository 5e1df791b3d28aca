"""Folders for sockets: in the place of the run's temporary files wherever a socket's path fits, so that they go with
the run."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from env_service.hosting.cluster import RAY_SOCKET_CHARS
from env_service.hosting.processes import SOCKET_CHARS, new_folder, remove_folder


def test_a_folder_is_where_the_runs_temporary_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(tempfile.mkdtemp(prefix="ae-261123-061547-", dir="/tmp")) / "tmp"
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    made = [new_folder(len("/workers")), new_folder(RAY_SOCKET_CHARS)]
    try:
        assert [Path(folder).parent for folder in made] == [root, Path("/tmp")], (
            "Ray's own sockets need the shorter path"
        )
        assert all(Path(folder).stat().st_mode & 0o777 == 0o700 for folder in made)
    finally:
        for folder in (*made, str(root.parent)):
            remove_folder(folder)


def test_the_longest_path_that_is_given_is_one_of_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tempfile.mkdtemp(dir="/tmp")
    try:
        root = Path(parent) / ("x" * (SOCKET_CHARS - len("/env_service-4194304-12345678/workers") - len(parent) - 1))
        root.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        monkeypatch.setattr(os, "getpid", lambda: 4_194_304)
        folder = new_folder(len("/workers"))
        assert Path(folder).parent == root
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"{folder}/workers")
        root = root.rename(f"{root}x")
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        folder = new_folder(len("/workers"))
        assert Path(folder).parent == Path("/tmp")
        remove_folder(folder)
    finally:
        remove_folder(parent)

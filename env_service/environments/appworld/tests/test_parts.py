"""The small parts on their own: prompts, cutting, the channel, episode folders."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_service.environments.appworld import installation, prompts
from env_service.environments.appworld.installation import EpisodeFolder
from env_service.environments.appworld.worker.channel import Channel, ChannelClosed
from env_service.environments.appworld.worker.episode import cut

FACTS: dict[str, Any] = {
    "instruction": "Do it.",
    "supervisor": {"first_name": "Ada", "last_name": "$Moss", "email": "ada@example.com", "phone_number": "555"},
    "datetime": "2023-05-18T12:00:00",
    "app_descriptions": {"venmo": "money", "phone": "calls"},
}


def opening(**changes: bool) -> list[Any]:
    options = {"is_simple": False, "with_prompt": True, "is_open_query": False} | changes
    return list(prompts.opening(FACTS, **options))


@given(st.text(), st.integers(10, 200))
def test_cut_keeps_head_and_tail_and_says_what_is_missing(text: str, limit: int) -> None:
    kept = cut(text, limit)
    if len(text) <= limit:
        assert kept == text
    else:
        head, tail = text[: limit * 3 // 5], text[-(limit - limit * 3 // 5) :]
        assert kept.startswith(head)
        assert kept.endswith(tail)
        assert f"{len(text) - limit} characters left out" in kept


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


def test_a_channel_puts_pieces_together_and_keeps_what_follows(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.sendall(b'{"a"')
    threading.Timer(0.05, other.sendall, [b': 1}\n[2]\n"th']).start()
    assert channel.receive(5) == {"a": 1}
    assert channel.receive(5) == [2]
    other.sendall(b'ree"\n')
    assert channel.receive(5) == "three"


def test_a_channel_gives_up_in_time_and_can_still_be_read_afterwards(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.sendall(b"[1,")
    with pytest.raises(TimeoutError):
        channel.receive(0.05)
    other.sendall(b"2]\n")
    assert channel.receive(5) == [1, 2]


def test_a_channel_notices_the_end(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.close()
    with pytest.raises(ChannelClosed):
        channel.receive(5)
    with pytest.raises(ChannelClosed):
        channel.send("x" * 1_000_000)


@pytest.fixture
def temporary(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(tempfile.mkdtemp(dir=short_tmp))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_an_episode_folder_goes_with_all_it_holds(temporary: Path) -> None:
    folder = EpisodeFolder()
    (folder.path / "deep" / "er").mkdir(parents=True)
    (folder.path / "deep" / "er" / "file").write_text("x")
    folder.delete()
    assert not folder.path.exists()


def test_sweeping_leaves_living_episodes_alone_and_removes_orphans(temporary: Path) -> None:
    living = EpisodeFolder()
    orphan = living.path.parent / "orphan"
    orphan.mkdir()
    (orphan / "owner.lock").touch()
    assert installation.sweep() == 1
    assert living.path.exists()
    assert not orphan.exists()
    living.delete()


def test_a_temporary_folder_too_deep_for_a_socket_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert len(str(installation.runtime_folder() / "0123456789abcdef.sock")) < 107
    assert not any(deep.iterdir())


def test_a_runtime_folder_that_others_can_enter_is_refused(temporary: Path) -> None:
    installation.runtime_folder().chmod(0o755)
    with pytest.raises(PermissionError, match="not a folder that only this user can enter"):
        installation.runtime_folder()

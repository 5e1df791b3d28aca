"""Another user of the machine asks the service for files that only its owner can read."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_hosts import Http, serving

FOLDERS = {"folders": "env_service.environments.task_folders.env:TaskFoldersEnv"}
ASK = """
import os, sys, urllib.error, urllib.request
"127.0.0.1".encode("idna")  # nobody cannot import it later
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
request = urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), {"Content-Type": "application/json"})
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).read().decode())
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""
pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user"),
]


async def ask_as_nobody(url: str, **body: Any) -> str:
    def ask() -> str:
        command = [sys.executable, "-I", "-S", "-c", ASK, url]
        given = json.dumps(body).encode()
        return subprocess.run(command, input=given, capture_output=True, check=True).stdout.decode()

    return await asyncio.to_thread(ask)


@pytest.fixture
def folders() -> Iterator[dict[str, Path]]:
    """The owner's tasks and secret, and a stranger's folder that links to it."""
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        found = {name: base / name for name in ("tasks", "private", "stranger")}
        for folder in found.values():
            (folder / "train" / "one").mkdir(parents=True)
        base.chmod(0o755)
        (found["private"] / "train" / "one" / "instruction.md").write_text("SECRET")
        (found["private"] / "train" / "one" / "instruction.md").chmod(0o600)
        (found["private"]).chmod(0o700)
        (found["tasks"] / "train" / "one" / "instruction.md").write_text("Greet.")
        (found["tasks"] / "train" / "linked").mkdir()
        secret = found["private"] / "train" / "one" / "instruction.md"
        (found["tasks"] / "train" / "linked" / "instruction.md").symlink_to(secret)
        (found["tasks"] / "elsewhere").symlink_to(found["private"] / "train")
        (found["stranger"] / "train" / "one" / "instruction.md").symlink_to(secret)
        (found["stranger"] / "linked").symlink_to(found["private"])
        yield found


async def test_only_tasks_of_the_owners_folders_are_told(folders: dict[str, Path]) -> None:
    tasks, private, stranger = map(str, folders.values())
    roots = [
        private,
        stranger,
        f"{stranger}/linked",
        f"{tasks}/../private",
        "/",
        "~",
        "file:/",
        f"{tasks}/elsewhere/..",
    ]
    async with serving(FOLDERS, paths=(tasks,)) as running:
        answer = await ask_as_nobody(f"{running.url}/create", task_id="train/one", params={"root": tasks})
        assert "Greet." in answer
        for root in [*roots, os.path.relpath(private)]:
            for params in ({"root": root}, {"root": tasks, "more": {"files": [root]}}):
                answer = await ask_as_nobody(f"{running.url}/create", task_id="train/one", params=params)
                assert "params name a file" in answer and "SECRET" not in answer
            asked = {"split": "train", "root": root}
            assert "params name a file" in await ask_as_nobody(f"{running.url}/get_env_profile", params=asked)
        for task_id in ("train/linked", "elsewhere/one", "../private/train/one", f"{private}/train/one"):
            answer = await ask_as_nobody(f"{running.url}/create", task_id=task_id, params={"root": tasks})
            assert "no task" in answer and "SECRET" not in answer
        for split in ("elsewhere", "../private/train", f"{private}/train"):
            asked = {"split": split, "root": tasks}
            assert "is outside of" in await ask_as_nobody(f"{running.url}/get_env_profile", params=asked)
        assert len(running.service.instances) == 1


async def test_a_caller_with_the_token_names_any_folder(folders: dict[str, Path]) -> None:
    async with serving(FOLDERS, token="right") as running, Http(running.url, "right") as http:
        body = {"task_id": "train/one", "params": {"root": str(folders["private"])}}
        assert (await http.post("/create", body))[0] == 200

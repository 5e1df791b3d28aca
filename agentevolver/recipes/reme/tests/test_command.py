"""The command that serves the pool."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from agentevolver.cli.commands.experience_manager import main
from agentevolver.llm.embeddings import HashingEncoder
from agentevolver.llm.settings import LLMSettings
from agentevolver.recipes.reme.command import _told
from agentevolver.recipes.reme.tests.reme_bodies import retrieve
from experience_manager.pool import Configuration, Pool
from experience_manager.store import Store
from tests.experience_manager.experience_fakes import experience, ids_of


@pytest.mark.parametrize(
    ("llm", "words"),
    [
        ({"base_url": "policy", "model": "x"}, "no summariser: llm.base_url is `policy`"),
        ({"base_url": "https://api.example.com/v1", "api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
        ({"base_url": "https://api.example.com/v1", "api_key_env": None}, "summariser: m"),
    ],
)
def test_who_summarises_is_told_or_what_is_missing(llm, words):
    told = _told(Configuration(llm=LLMSettings.model_validate({"model": "m", **llm})))
    assert words in told and "\n" not in told


def test_serving_beyond_loopback_needs_a_token(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("EXPERIENCE_SERVICE_TOKEN", raising=False)
    assert main(["serve", "--store", str(tmp_path / "s.sqlite"), "--host", "0.0.0.0"]) == 1
    assert "set EXPERIENCE_SERVICE_TOKEN to a long random text" in capsys.readouterr().err


@pytest.mark.service
def test_the_service_starts_says_so_answers_and_stops_on_sigterm(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        Pool(store, HashingEncoder()).put([experience("delete the note", "read its doc first", id="a")])
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "experience_manager",
        "serve",
        "--store",
        str(tmp_path / "s.sqlite"),
        "--port",
        str(port),
    ]
    command += ["--set", "llm.teacher.url=http://127.0.0.1:9/v1", "--set", "llm.tries=1"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "EXPERIENCE_SERVICE_TOKEN": ""})
    try:
        deadline = time.monotonic() + 90
        while b"Uvicorn running on" not in (tmp_path / "log").read_bytes():
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/retrieve_task_memory",
            json.dumps(retrieve()).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert "read its doc first" in json.load(reply)["answer"]
        again = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert again.returncode == 1 and "give another --port" in again.stderr
        body = {
            "trajectories": [
                {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "score": 1.0}
            ]
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/summary_task_memory",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(request, timeout=60)
        assert "nothing was stored: summariser (teacher at" in json.load(refused.value)["detail"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    with Store(tmp_path / "s.sqlite") as store:
        assert ids_of(store) == {"a"}

"""The command that serves the pool."""

import json
import os
import re
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
from agentevolver.recipes.reme.command import summariser_problem
from agentevolver.recipes.reme.tests.reme_bodies import retrieve
from experience_manager.pool import Pool
from experience_manager.store import Store
from tests.experience_manager.experience_fakes import experience, ids_of


def test_serving_beyond_loopback_needs_a_token(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("EXPERIENCE_SERVICE_TOKEN", raising=False)
    assert main(["serve", "--store", str(tmp_path / "s.sqlite"), "--host", "0.0.0.0"]) == 1
    assert "set EXPERIENCE_SERVICE_TOKEN to a long random text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("llm", "words"),
    [
        (
            {"base_url": "policy", "model": "x"},
            "is `policy`, the model of a training run, which is not served here; name a model: --set",
        ),
        (
            {"base_url": "offline", "teacher": {"url": "http://127.0.0.1:9/v1"}},
            r"nothing listens at 'http://127.0.0.1:9/v1'; start it \(python",
        ),
        (
            {"base_url": "https://api.example.com/v1", "api_key_env": "NO_SUCH_KEY"},
            "the environment variable NO_SUCH_KEY is not set; put",
        ),
        (
            {"base_url": "http://localhost:9/v1", "api_key_env": None},
            "nothing listens at llm.base_url http://localhost:9/v1; start",
        ),
        ({"base_url": "https://api.example.com/v1", "api_key_env": None}, None),
    ],
)
def test_a_summariser_that_is_missing_is_told_in_one_line_with_what_to_do(llm, words):
    told = summariser_problem(LLMSettings.model_validate({"model": "m", **llm}))
    assert told is None if words is None else re.search(words, told) and "\n" not in told


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
        log = (tmp_path / "log").read_text()
        assert (
            "no summariser, so /summary_task_memory fails: llm.base_url is `offline`" in log
            and "start it (python -m agentevolver." in log
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    with Store(tmp_path / "s.sqlite") as store:
        assert ids_of(store) == {"a"}

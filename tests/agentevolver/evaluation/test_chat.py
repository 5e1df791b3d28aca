"""`agentevolver chat` without a terminal: lines say what to do, and what is typed takes the policy's place."""

from __future__ import annotations

import io

import pytest

from agentevolver import cli
from tests.agentevolver.evaluation.conftest import ScriptedEngine
from tests.agentevolver.evaluation.servers import chat_server, notes_alone
from tests.agentevolver.evaluation.test_eval import ON_CPU
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.environment("pocket")
TASK = ["--task", "note_add.k1.50000"]


def chat(monkeypatch: pytest.MonkeyPatch, lines: str, *arguments: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return cli.main(["chat", *arguments, *ON_CPU])


@pytest.mark.service
def test_enter_takes_the_models_action_and_shows_each_step(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with chat_server(notes_alone) as (url, requests):
        assert chat(monkeypatch, "\n\n", "--api", url, "--model", "m", "--key-env", "none", *TASK) == 0
    printed = capfd.readouterr().out
    for shown in (
        "user: add note mug with tag fun",
        "policy, step 1: note.add mug fun",
        "environment: ok n2",
        "solved, score 1",
    ):
        assert shown in printed
    assert len(requests) == 2 and requests[1]["messages"][-2]["content"] == "note.add mug fun"


@pytest.mark.service
def test_what_is_typed_takes_the_models_place_in_its_own_context(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with chat_server(lambda messages: "done") as (url, requests):
        assert chat(monkeypatch, "note.add mug fun\n\n", "--api", url, "--model", "m", "--key-env", "none", *TASK) == 0
    assert "solved, score 1" in capfd.readouterr().out
    assert requests[1]["messages"][-2] == {"role": "assistant", "content": "note.add mug fun"}


@pytest.mark.thorough
def test_a_typed_action_becomes_the_policys_tokens(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], engines: list[ScriptedEngine]
) -> None:
    assert chat(monkeypatch, "note.add mug fun\n\n", str(tiny_model_path()), *TASK) == 0
    assert "environment: ok n2" in (printed := capfd.readouterr().out) and "solved, score 1" in printed

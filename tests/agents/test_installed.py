"""Where the agents are not installed their tests are skipped, and in a run of all tests they fail."""

from pathlib import Path

import pytest

from tests.agents import playing


def test_agents_that_are_missing_are_a_failure_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "CODEX", Path("/nowhere/codex"))
    monkeypatch.delenv("AGENTS_REQUIRED", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"/nowhere/codex.*setup\.sh"):
        playing.need_agents()
    monkeypatch.setenv("AGENTS_REQUIRED", "1")
    with pytest.raises(pytest.fail.Exception, match=r"/nowhere/codex.*setup\.sh"):
        playing.need_agents()

"""The check of outside links finds those of README and documentation, and only warns of those that do not answer."""

from pathlib import Path

import pytest

from tests.answers import answering
from tests.docs.outside_links import main


def test_what_does_not_answer_is_a_warning_and_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(method: str, path: str) -> tuple[int, bytes]:
        asked.append(path)
        return {"/gone": 404, "/broken": 500}.get(path, 200), b""

    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    page = tmp_path / "page.md"
    with answering(answer) as server:
        page.write_text(
            f"[a]({server}/there) [b]({server}/gone#part)\n```\n[c]({server}/code)\n```\n"
            f"<{server}/other> [d]({server}/there#other)\n[e]({server}/broken) [f](http://127.0.0.1:1/) [g](page.md)\n"
        )
        assert main([str(page)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(f"{page}:") for line in lines[:2]] == [
        f"1: {server}/gone#part: HTTP 404",
        f"6: {server}/broken: HTTP 500",
    ]
    assert "127.0.0.1:1/: " in lines[2] and "refused" in lines[2]
    assert len(lines) == 3 and last == "6 outside links, 3 of them do not answer"
    assert sorted(asked) == ["/broken", "/gone", "/other", "/there"], "each page is asked for once"

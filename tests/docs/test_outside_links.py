"""The check of outside links finds those of README and documentation, and only warns of those that do not answer."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.docs import outside_links
from tests.docs.outside_links import ROOT, links, main, pages

SCRIPT = Path(outside_links.__file__)


class Answers(BaseHTTPRequestHandler):
    """`/gone` is gone, `/shy` does not take HEAD, `/broken` breaks; everything else is there."""

    asked: list[tuple[str, str]]

    def _answer(self) -> None:
        self.asked.append((self.command, self.path))
        shy = self.path == "/shy" and self.command == "HEAD"
        self.send_response(405 if shy else {"/gone": 404, "/broken": 500}.get(self.path, 200))
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_HEAD = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Answers.asked = []
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


def test_links_of_the_pages_are_found() -> None:
    found = {link.url: link for page in pages() for link in links(page)}
    assert "https://github.com/volcengine/verl" in found and "https://arxiv.org/abs/2511.10395" in found
    assert found["https://github.com/microsoft/agent-lightning"].page == ROOT / "README.md"
    assert not [url for url in found if "127.0.0.1" in url], "an address in a block of code is no link"


def test_what_does_not_answer_is_a_warning_and_nothing_more(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    page = tmp_path / "page.md"
    page.write_text(
        f"[a]({server}/there) [b]({server}/gone#part)\n```\n[c]({server}/code)\n```\n"
        f"<{server}/shy> [d]({server}/there#other)\n[e]({server}/broken) [f](http://127.0.0.1:1/) [g](page.md)\n"
    )
    assert main([str(page)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(f"{page}:") for line in lines[:2]] == [
        f"1: {server}/gone#part: HTTP 404",
        f"6: {server}/broken: HTTP 500",
    ]
    assert "127.0.0.1:1/: " in lines[2] and "refused" in lines[2]
    assert len(lines) == 3 and last == "6 outside links, 3 of them do not answer"
    asked = sorted(Answers.asked)
    assert ("GET", "/shy") in asked and asked.count(("HEAD", "/there")) == 1, "each page is asked for once"
    assert not [path for _, path in asked if path == "/code"]


def test_a_workflow_is_told_in_its_own_words(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (tmp_path / "page.md").write_text(f"[b]({server}/gone)\n")
    assert main([str(tmp_path / "page.md")]) == 0
    assert capsys.readouterr().out.startswith(f"::warning file={tmp_path}/page.md,line=1::{server}/gone: HTTP 404\n")


@pytest.mark.service
def test_the_script_needs_python_alone_and_the_workflow_runs_it(server: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"[b]({server}/gone)\n")
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(tmp_path / "page.md")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "1 of them do not answer" in done.stdout and done.stderr == ""
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["links"]
    assert job["steps"][-1]["run"] == f"python3 {SCRIPT.relative_to(ROOT)}"

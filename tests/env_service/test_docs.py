"""What the documentation shows runs as it stands there."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from local_hosts import serving

from env_service.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "env_service.md").read_text(encoding="utf-8")


def block(start: str) -> str:
    """Return the Python block of the page that starts so."""
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.S) if code.startswith(start)]
    return str(found)


async def test_the_documented_environment_keeps_the_contract_and_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spelling.py").write_text(block('"""The agent spells'), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = "spelling=spelling:SpellingEnv"
    assert await asyncio.to_thread(main, ["check", "spelling", "--env-module", module]) == 0, capsys.readouterr().out
    from env_service.client import AsyncEnvClient

    async with serving({"spelling": "spelling:SpellingEnv"}) as running, AsyncEnvClient(running.url) as client:
        await client.create_instance("spelling", "ray", "a")
        assert (await client.step("a", {"role": "assistant", "content": "yax"}))["state"][0][
            "content"
        ] == "2 right, 2 tries left."
        result = await client.step("a", {"role": "assistant", "content": "yar"})
        assert (result["reward"], result["is_terminated"], await client.evaluate("a")) == (1.0, True, 1.0)


def test_every_option_and_route_of_the_page_exists() -> None:
    from env_service.cli import _parser
    from env_service.http.routes import MANY, ROUTES

    texts = [_parser().format_help()]
    for command in ("serve", "check", "bench", "new", "list"):
        result = subprocess.run(
            [sys.executable, "-m", "env_service", command, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        texts.append(result.stdout)
    own = re.sub(r"`python -m benchmarks[^`]*`", "", PAGE)  # a benchmark's options are its own
    for option in set(re.findall(r"`?(--[a-z][a-z-]+)", own)):
        assert any(option in text for text in texts), option
    assert all(path in PAGE for path in (*ROUTES, *MANY))

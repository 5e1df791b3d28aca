"""What the documentation shows runs as it stands there."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from local_hosts import serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "env_service.md").read_text(encoding="utf-8")


def block(start: str) -> str:
    """Return the Python block of the page that starts so."""
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, re.S) if code.startswith(start)]
    return str(found)


async def test_the_documented_client_runs_against_the_pocket_world() -> None:
    async with serving({"pocket": "env_service.environments.pocket.env:PocketEnv"}) as running:
        code = block("import asyncio").replace("http://127.0.0.1:8080", running.url)
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code]
        result = await asyncio.to_thread(
            subprocess.run, command, env=environ, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert not running.service.instances


def test_every_option_of_the_page_exists() -> None:
    from env_service.cli import _parser

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

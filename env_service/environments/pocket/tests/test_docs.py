"""The client that docs/env_service.md shows runs as it stands there."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from local_hosts import serving

from env_service.registry import resolve

ROOT = Path(__file__).parents[4]


async def test_the_documented_client_plays_an_episode() -> None:
    page = (ROOT / "docs" / "env_service.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.S) if code.startswith("import asyncio"))
    async with serving(resolve(["pocket"])) as running:
        command = [sys.executable, "-c", code.replace("http://127.0.0.1:8080", running.url)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        result = await asyncio.to_thread(
            subprocess.run, command, env=environ, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert not running.service.instances

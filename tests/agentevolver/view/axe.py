"""axe-core, which reports what people with disabilities stumble over: taken from npm once, checked by its digest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.agentevolver.view.browser import Page

VERSION = "4.11.0"
SHA256 = "e9e5863c33a874f09bc01acd9234b7e3c871479f5eef8802fa582544465e6d01"
_SHORT = """({id, impact, nodes}) => [id, impact, nodes.slice(0, 3).map(
    (node) => node.html.slice(0, 120) + " " + node.failureSummary.slice(0, 200))]"""


def axe_script(cache: Path) -> str:
    """axe's script, from the file that VIEW_AXE names, from `cache`, or from npm; skips the test where none can be
    had."""
    path = Path(os.environ.get("VIEW_AXE") or cache / f"axe-core-{VERSION}.min.js")
    if not path.is_file():
        _fetch(path)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        pytest.fail(f"{path} is not axe-core {VERSION}")
    return content.decode()


def _fetch(path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no axe-core: install npm, or name its axe.min.js in VIEW_AXE")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", f"axe-core@{VERSION}", "--pack-destination", str(path.parent), "--silent"]
    if subprocess.run(command, capture_output=True, timeout=120).returncode:
        pytest.skip("no axe-core: npm cannot fetch it here; name its axe.min.js in VIEW_AXE")
    packed = path.parent / f"axe-core-{VERSION}.tgz"
    with tarfile.open(packed) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        path.write_bytes(member.read())
    packed.unlink()


async def violations(page: Page, script: str) -> list[Any]:
    """What axe reports of the page as it is shown, with all rules that it has on by itself."""
    await page.run(f"if (!window.axe) {{ {script} }}; 1")
    found = await page.run(f"axe.run(document).then((r) => JSON.stringify(r.violations.map({_SHORT})))")
    return list(json.loads(found))

"""The notebook of the examples: as it is shipped it holds no output, and its cells run one after the other.

The cells are executed as they stand but for two lines of the first, which say how long and where; a notebook's own
kernel is not needed for that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import ROOT, free_port

NOTEBOOK = ROOT / "examples" / "first_run.ipynb"
STEPS = 2


def cells(kind: str) -> list[str]:
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.mark.e2e
@pytest.mark.examples
@pytest.mark.timeout(900)
def test_its_cells_train_draw_and_read(tmp_path: Path) -> None:
    first, *others = cells("code")
    shorter = first.replace("STEPS = 20", f"STEPS = {STEPS}").replace(
        'EXPERIMENTS = ROOT / "experiments"', f"EXPERIMENTS = Path({str(tmp_path)!r})"
    )
    assert shorter.count(str(tmp_path)) == 1 and f"STEPS = {STEPS}" in shorter
    port = f'command += ["env_service.env_url=http://127.0.0.1:{free_port()}", "trainer.experiment_name=notebook"]\n'
    assert "with subprocess.Popen(" in others[0]
    others[0] = others[0].replace("with subprocess.Popen(", f"{port}with subprocess.Popen(")
    drawn = f"figure.savefig({str(tmp_path / 'curve.png')!r})\n"
    drawn += "print('LINES', [len(line.get_xdata()) for line in axes.lines])"
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join(["import matplotlib\nmatplotlib.use('Agg')", shorter, *others, drawn]))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=NOTEBOOK.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    said = done.stdout
    assert f"step    {STEPS}/{STEPS}" in said
    assert f"LINES [{STEPS}, 2]" in said and "at step 0, " in said and f" at step {STEPS}\n" in said
    assert "rollouts; those of the task" in said and (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")

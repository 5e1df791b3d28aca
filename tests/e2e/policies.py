"""The small policy of calc that both agents begin with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.runs import ROOT

BUILT = "CALC_POLICY"
"""Names a folder in which the policy was built already: building it takes three minutes of a core."""


def calc_policy(folder: Path) -> Path:
    """Return the policy's folder, built in `folder` unless there is one."""
    if built := os.environ.get(BUILT):
        return Path(built)
    subprocess.run(
        [sys.executable, "-m", "agentevolver.recipes.offline.seed.calc", "--out", str(folder)], cwd=ROOT, check=True
    )
    return folder

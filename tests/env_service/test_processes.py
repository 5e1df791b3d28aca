from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_host_sees_of_the_secrets_in_files_those_that_are_passed_on(tmp_path: Path) -> None:
    for name in ("WANTED_KEY", "OTHER_KEY"):
        (tmp_path / name).write_text("k")
    script = """
import os, sys
from env_service.hosting.host import HostActor, HostSpec
HostActor(HostSpec("counter", "counter_envs:Counter", pass_env=("WANTED_KEY", "NOT_THERE_KEY"), secrets=sys.argv[1]))
assert os.environ["WANTED_KEY"] == "k" and not {"OTHER_KEY", "NOT_THERE_KEY", "SHELLS_KEY"} & {*os.environ}
"""
    environ = {"PYTHONPATH": os.pathsep.join((*sys.path, str(Path(__file__).parent))), "SHELLS_KEY": "k"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr

"""What is wrong is said in one line within seconds, before an engine is started."""

import os
import subprocess
import sys
import time

import pytest

from tests.e2e.runs import ROOT, free_port

pytestmark = [pytest.mark.service, pytest.mark.timeout(180)]


def run(tmp_path, *arguments, conf="examples/basic.yaml"):
    command = [
        sys.executable,
        str(ROOT / "launcher.py"),
        "--conf",
        str(conf),
        "device=cpu",
        f"experiment.root={tmp_path}",
        *arguments,
    ]
    began = time.monotonic()
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=170
    )
    errors = [line for line in result.stderr.splitlines() if "error" in line.lower() or "configuration" in line.lower()]
    assert "Traceback" not in result.stderr + result.stdout
    return result, errors, time.monotonic() - began


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["data.max_prompt_length=3"],
            "data.max_prompt_length = 3, but the opening messages of 8 of 8 tasks of pocket are longer",
        ),
        (["env_service.env_params.slak=3"], "did you mean 'slack'"),
        (["data.val_splits=[nowhere]"], "nowhere"),
    ],
)
def test_what_only_the_environment_knows_is_found_before_the_engines_start(tmp_path, arguments, message):
    result, errors, _ = run(tmp_path, f"env_service.env_url=http://127.0.0.1:{free_port()}", *arguments)
    assert result.returncode == 2, result.stderr + result.stdout
    assert message in "\n".join(errors) and len([e for e in errors if message in e]) == 1
    assert "starting vLLM" not in result.stdout

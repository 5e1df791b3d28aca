"""The real thing but for the trainer: `launcher.py` starts Ray and the environment service, runs a job, and leaves
nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentevolver.utils.processes import carriers
from tests.free_ports import free_port

pytestmark = pytest.mark.service
ROOT = Path(__file__).parents[3]


def test_a_run_on_real_ray_leaves_no_process_no_port_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    port = free_port()
    arguments = [
        "--target=fake_target",
        f"--conf={ROOT / 'examples' / 'basic.yaml'}",
        f"actor_rollout_ref.model.path={tmp_path / 'model'}",
        f"experiment.root={tmp_path}",
        f"env_service.env_url=http://127.0.0.1:{port}",
        "ray.num_cpus=5",
        "ray.dashboard=false",
        "device=cpu",
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "launcher.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "JUDGE_KEY": "sk-very-secret"},
    )
    experiment = tmp_path / "pocket" / "basic"
    (launch,) = experiment.glob("launches/*.json")
    run_id = launch.stem
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said.pop("listening") == ["127.0.0.1"], (
        "Ray, the environment service and every worker listen on loopback alone"
    )
    assert said.pop("strangers") == [True, True], "who has no token is refused"
    assert said == {"run_id": run_id, "health": "OK", "cpus": 5.0, "secret": "sk-very-secret"}
    assert carriers(run_id) == set()
    assert not (Path("/tmp") / f"ae-{run_id}").exists()
    assert not list((ROOT / ".agentevolver" / "run").glob(f"{run_id}*"))
    assert sorted(path.name for path in (experiment / "logs").iterdir()) == [
        "env_service.log",
        "main.log",
        "preload.log",
        "ray.log",
    ]
    written = [path for path in experiment.rglob("*") if path.is_file()]
    assert [path for path in written if path.name != "main.log" and b"sk-very-secret" in path.read_bytes()] == []

"""A real run with keys in its environment, looked at as another user and as the same one; it leaves nothing."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentevolver.utils.processes import carriers
from tests.bare_model import bare_model
from tests.free_ports import free_port
from tests.strangers import NOBODY, carrying, needs_root, readable

pytestmark = pytest.mark.service
ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent


@dataclass
class Running:
    """A run whose main job waits; `canaries` are its secrets by variable."""

    folder: Path
    began: float
    canaries: dict[str, str]
    said: dict[str, Any]

    @property
    def experiment(self) -> Path:
        return self.folder / "pocket" / "basic"

    @property
    def run_id(self) -> str:
        (launch,) = self.experiment.glob("launches/*.json")
        return launch.stem

    @property
    def temp_dir(self) -> Path:
        return Path("/tmp") / f"ae-{self.run_id}"


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    # Not pytest's own folder, which nobody else may enter: what keeps strangers out must be the run's own doing.
    folder = Path(tempfile.mkdtemp(prefix="strangers-", dir="/tmp"))
    folder.chmod(0o755)
    bare_model(folder / "model")
    names = (
        "OPENAI_API_KEY",
        "ENV_SERVICE_TOKEN",
        "EXPERIENCE_SERVICE_TOKEN",
        "WANDB_API_KEY",
        "HF_TOKEN",
        "aws_secret_access_key",
        "MY_LLM",
    )
    canaries = {name: f"canary{secrets.token_hex(8)}" for name in names}
    arguments = [
        *("--target=stranger_target", f"--conf={ROOT / 'examples' / 'basic.yaml'}", "device=cpu"),
        *(
            "--with-lonely",
            "--env-module=lonely=counter_envs:SteadyLonelyCounter",
            "llm.roles.judge.api_key_env=MY_LLM",
        ),
        *(
            f"actor_rollout_ref.model.path={folder / 'model'}",
            f"experiment.root={folder}",
            "ray.num_cpus=2",
            "ray.dashboard=false",
        ),
        f"env_service.env_url=http://127.0.0.1:{free_port()}",
    ]
    path = os.pathsep.join((str(ROOT), str(HERE), str(ROOT / "tests" / "env_service")))
    began = time.time()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "launcher.py"), *arguments],
            cwd=ROOT,
            env={**os.environ, **canaries, "PYTHONPATH": path, "STRANGER_FOLDER": str(folder), "TMPDIR": "/tmp"},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o022,
        )
    try:
        deadline = time.monotonic() + 180
        while not (folder / "ready").exists():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "said").read_text()
            time.sleep(0.2)
        run = Running(folder, began, canaries, json.loads((folder / "ready").read_text()))
        yield run
        (folder / "looked").touch()
        assert process.wait(120) == 0, (folder / "said").read_text()
        assert carriers(run.run_id) == set() and not run.temp_dir.exists()
        assert not list((ROOT / ".agentevolver" / "run").glob(f"{run.run_id}*"))
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)
        shutil.rmtree(folder)


def test_a_role_has_its_key(running: Running) -> None:
    assert running.said["key"] == running.canaries["OPENAI_API_KEY"]


def test_every_process_listens_on_loopback_alone_and_ray_refuses_who_has_no_token(running: Running) -> None:
    assert (running.said["listening"], running.said["refused"]) == (["127.0.0.1"], True)


@needs_root
def test_another_user_reads_no_secret_and_no_file_of_the_run(running: Running) -> None:
    bait = running.folder / "bait"
    bait.write_text(running.canaries["HF_TOKEN"])
    bait.chmod(0o644)
    places = [Path("/tmp"), Path("/dev/shm"), running.folder, ROOT / ".agentevolver"]
    assert readable(places, running.canaries.values(), NOBODY, running.began) == {bait}, (
        "the bait is found, and nothing else"
    )
    bait.unlink()
    assert readable([running.experiment, running.temp_dir], [""], user=NOBODY) == set()
    assert running.temp_dir.stat().st_mode & 0o777 == running.experiment.stat().st_mode & 0o777 == 0o700
    open_files = [path for path in running.experiment.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert open_files == []


def test_secrets_stand_in_no_file_but_their_own(running: Running) -> None:
    kept = ROOT / ".agentevolver" / "run" / f"{running.run_id}.secrets"
    found = readable([running.experiment, running.temp_dir, ROOT / ".agentevolver"], running.canaries.values())
    assert found == {kept / name for name in running.canaries}
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600} and kept.stat().st_mode & 0o777 == 0o700


def test_no_process_but_the_main_job_carries_a_secret(running: Running) -> None:
    found = carrying(running.run_id, running.canaries.values())
    assert {command: names for command, names in found.items() if "stranger_target" not in command} == {}

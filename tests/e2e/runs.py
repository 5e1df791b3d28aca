"""Real runs of the launcher, small: the shipped configuration with fewer and smaller steps."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentevolver.utils.net import take_any_port
from agentevolver.utils.processes import ProcessId, carriers, send
from tests.e2e.traces import Traces

ROOT = Path(__file__).resolve().parents[2]

# 4 tasks x 4 rollouts a step, a checkpoint with the weights in Hugging Face's form after each, every row's tokens on
# disk.
SMALL = (
    "device=cpu",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.val_kwargs.n=2",
    "data.val_filter.n=8",
    "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    "trainer.max_actor_ckpt_to_keep=null",
    "trainer.dump_samples=true",
    "ray.dashboard=false",
)


def free_port() -> int:
    return take_any_port()


def launch(folder: Path, name: str, *overrides: str) -> Launched:
    return Launched(folder, name, (*SMALL, *overrides))


class Launched:
    """A launcher of our own on one of the examples, in a session of its own, with its output in a file."""

    def __init__(
        self,
        folder: Path,
        name: str,
        overrides: tuple[str, ...],
        conf: str | Path = "basic",
        env: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.directory = folder / "pocket" / name
        self.output_path = folder / f"{name}-{time.time_ns()}.out"
        self.port = free_port()
        command = [
            *(sys.executable, str(ROOT / "launcher.py"), "--conf"),
            str(conf if isinstance(conf, Path) else ROOT / "examples" / f"{conf}.yaml"),
            *flags,
            *(f"experiment.root={folder}", "trainer.project_name=pocket", f"trainer.experiment_name={name}"),
            *(f"env_service.env_url=http://127.0.0.1:{self.port}", *overrides),
        ]
        self.began = time.time()
        self.traces = Traces(self._run_id, folder)
        variables = os.environ | {"TMPDIR": str(self.traces.folder)} | dict(env or {})
        with self.output_path.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def _run_id(self) -> str | None:
        found = re.search(r"run (\d{6}-\d{6}-[0-9a-f]+)", self.output) if self.output_path.exists() else None
        return found and found.group(1)

    @property
    def run_id(self) -> str:
        found = self._run_id()
        assert found is not None, self.output
        return found

    def processes(self, service: str | None = None) -> set[ProcessId]:
        return carriers(self.run_id, service)

    def victims(self, what: str, service: str | None = None) -> list[ProcessId]:
        """Processes whose command line holds a text."""
        return [process for process in self.processes(service) if what in command_of(process)]

    def checkpointed(self) -> int:
        """The step of the newest checkpoint; 0: there is none."""
        marker = self.directory / "checkpoints" / "latest_checkpointed_iteration.txt"
        return int(marker.read_text() or 0) if marker.exists() else 0

    def steps_done(self) -> list[int]:
        """The steps in metrics.jsonl that this launch wrote."""
        path = self.directory / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [record["step"] for record in records if record["time"] >= self.began]

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float = 400) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, (
                f"the launcher ended with {self.process.returncode} before {what}:\n{self.output}"
            )
            assert time.monotonic() < deadline, f"no {what} within {timeout_s} s:\n{self.output}"
            time.sleep(0.1)

    def wait(self, timeout_s: float = 600) -> int:
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """Whatever the test did, nothing stays."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for process in self.processes() if self._run_id() is not None else ():
            send(process, signal.SIGKILL)
        self.traces.close()

    def left_behind(self) -> set[str]:
        """What the run made outside of its experiment's folder, and did not remove."""
        return self.traces.left()


def kill(found: list[ProcessId], what: str) -> None:
    """End processes at once; there has to be one."""
    assert found, f"there is no {what} to kill"
    for process in found:
        send(process, signal.SIGKILL)


def command_of(process: ProcessId) -> str:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""

"""Kill -9 of a run that makes tasks with a server that behaves like a real one: of what was billed, no more is billed
again than was under way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from task_manager.services import running
from task_manager.settings import QuestioningConfiguration
from task_manager.tasks import read_objectives
from tests.free_ports import free_port
from tests.llm.hostile_server import paid_twice
from tests.llm.serving import served

ROOT = Path(__file__).resolve().parents[2]
# Explorations at once and ahead of them, and proposals being verified: one call each can be under way.
EXPLORERS, VERIFIERS = 2, 2
FLIGHTS = 2 * EXPLORERS + VERIFIERS
SEEDS = 6


def sections(address: str, env_url: str, folder: Path) -> dict[str, Any]:
    return {
        "env_service": {"env_type": "gymnasium", "env_url": env_url, "external": True},
        "llm": {"base_url": f"{address}/v1", "model": "any", "api_key_env": None},
        "task_manager": {
            "n": 1,
            "max_seed_tasks": SEEDS,
            "train_data_path": str(folder / "tasks.jsonl"),
            "num_explore_threads": EXPLORERS,
            "num_verify_threads": VERIFIERS,
            "strategy_args": {"breadth_steps": 4, "depth_steps": 4},
            "deduplication": {"semantic": False, "scope": "world", "contamination": "off"},
        },
    }


def start(settings: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "task_manager", "synthesize", "--settings", str(settings)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def billed(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if line["billed"]]


@pytest.mark.service
@pytest.mark.chaos
def test_no_more_is_paid_again_after_kill_9_than_was_under_way(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    env_url = f"http://127.0.0.1:{free_port()}"
    log, settings = tmp_path / "asked.jsonl", tmp_path / "settings.yaml"
    temper = "fences=1+prose=0.5+outages=0.05+latency_s=0.03-0.06"
    with served("--temper", temper, "--log", str(log)) as address:
        told = sections(address, env_url, tmp_path)
        settings.write_text(yaml.safe_dump(told))
        with running(QuestioningConfiguration.model_validate(told), tmp_path / "logs"):
            for moment in (15, 45):
                process = start(settings)
                deadline = time.monotonic() + 120
                while len(billed(log)) < moment:
                    assert process.poll() is None, process.communicate()[0].decode()
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
                process.communicate()
            process = start(settings)
            output, _ = process.communicate(timeout=200)
            assert process.returncode == 0, output.decode()
    assert len(read_objectives(tmp_path / "tasks.jsonl")) >= SEEDS
    again = paid_twice(log)
    assert len(billed(log)) > 60 and sum(again.values()) <= 2 * FLIGHTS, again

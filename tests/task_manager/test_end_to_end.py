import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from task_manager.tasks import read_objectives
from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]


def run_command(tmp_path, *arguments):
    command = [sys.executable, "-m", "task_manager", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.service
def test_the_commands_go_from_nothing_to_verified_tasks(tmp_path):
    tree = {
        "env_service": {"env_type": "pocket", "env_url": f"http://127.0.0.1:{free_port()}"},
        "data": {"val_splits": ["dev"], "val_filter": {"n": 24}},
        "llm": {"teacher": {"url": f"http://127.0.0.1:{free_port()}/v1"}},
        "task_manager": {
            "n": 1,
            "max_seed_tasks": 8,
            "train_data_path": "tasks.jsonl",
        },
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(tree))
    made = run_command(tmp_path, "synthesize", "--settings", "s.yaml", "--with-services")
    assert made.returncode == 0, made.stderr
    tasks = read_objectives(tmp_path / "tasks.jsonl")
    assert len(tasks) >= 10 and "tasks: tasks.jsonl" in made.stdout

    stats = run_command(tmp_path, "stats", "--settings", "s.yaml")
    assert re.search(rf"kept +│ {len(tasks)} ", stats.stdout) and "tokens" in stats.stdout
    shown = run_command(tmp_path, "show", "--settings", "s.yaml", "--id", tasks[0].task_id)
    assert tasks[0].query in shown.stdout and "graded by state" in shown.stdout and "breadth" in shown.stdout

    spoilt = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    spoilt[1]["task"]["metadata"]["solution"] = ["note.tag n99 fun", "done"]
    (tmp_path / "spoilt.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spoilt))
    checked = run_command(
        tmp_path, "verify", "--settings", "s.yaml", "--with-services", "--tasks", "spoilt.jsonl", "--out", "good.jsonl"
    )
    assert checked.returncode == 1 and f"{len(tasks) - 1} of {len(tasks)} reference solutions hold" in checked.stdout
    assert len(read_objectives(tmp_path / "good.jsonl")) == len(tasks) - 1

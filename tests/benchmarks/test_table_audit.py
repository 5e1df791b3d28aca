"""`benchmarks.table_audit`: what a table's runs trained on, spent and were told, from the files that they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentevolver.llm.store import Ledger, Usage
from benchmarks.table_audit import main, nearness, read
from env_service.environments.pocket.app_tasks import app_task_ids, make_app_task

TASK_ID = app_task_ids("train")[0]
SOLUTION = [str(call) for call in make_app_task(TASK_ID).solution]


def synthetic(number: int, query: str, solution: list[str]) -> dict[str, Any]:
    metadata = {"synthetic": True, "seed_task_id": TASK_ID, "solution": solution}
    return {"task_id": f"{TASK_ID}#{number}", "query": query, "metadata": metadata}


def rollout(task: dict[str, Any], number: int, actions: list[str], *, success: bool, good: list[bool]) -> str:
    return json.dumps(
        {
            "task": task,
            "rollout_id": number,
            "steps": [{"action": action} for action in actions],
            "outcome": {"success": success},
            "attribution": {"status": "labelled", "good": good},
        }
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A run that kept two tasks, trained on one with a success and a failure, on the other with two failures."""
    run = tmp_path / "qa-1"
    (run / "tasks").mkdir(parents=True)
    (run / "trajectories").mkdir()
    kept = [synthetic(0, "what him does want", SOLUTION[:4]), synthetic(1, "him", SOLUTION)]
    (run / "tasks" / "tasks_explored.train.jsonl").write_text("".join(json.dumps({"task": one}) + "\n" for one in kept))
    lines = [
        rollout(kept[0], 0, SOLUTION[:2], success=True, good=[True, False]),
        rollout(kept[0], 1, ["rubbish"], success=False, good=[False]),
        rollout(kept[1], 0, ["rubbish"], success=False, good=[True]),
        rollout(kept[1], 1, ["rubbish"], success=False, good=[]),
    ]
    (run / "trajectories" / "step_1.jsonl").write_text("\n".join(lines) + "\n")
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "exp_manager/distil/stored": 4}) + "\n")
    (run / "config.yaml").touch()
    ledger = Ledger(run / "llm_usage.sqlite")
    for role, asked, told in (("explorer", 1000, 100), ("judge", 200, 20), ("attributor", 400, 40)):
        ledger.settle(role, Usage(), Usage(1, asked, told))
    ledger.close()
    return tmp_path


def test_tasks_tokens_and_labels_of_a_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = read(project)["qa"]
    assert audit.calls == [4, len(SOLUTION)] and audit.experiences == 4
    assert sorted(audit.met.values()) == [[False, False], [True, False]]
    # The reference's first two calls are good, a refused one is bad; who was told nothing says nothing.
    assert audit.labels == {True: [(True, True), (False, True)], False: [(False, False), (True, False)]}
    main([str(project), "--price-in", "1", "--price-out", "2"])
    shown = capsys.readouterr().out
    assert "| qa (1) | 2 |" in shown and "| 2 | 0% | 50% |" in shown
    assert "600, 60 (0.00072)" in shown, "of a kept task"
    assert "100, 10 (0.00012)" in shown, "of a label"
    assert "2 steps of successes | 0.500 | 0.500 | nan |" in shown
    assert "2 steps of failures | 0.500 | nan | 0.500 |" in shown


def test_a_task_of_dev_among_the_kept_is_contamination(project: Path) -> None:
    query = make_app_task(app_task_ids("dev")[0]).query
    assert nearness(query) == 1 > nearness(query + " too")
    with (project / "qa-1" / "tasks" / "tasks_explored.train.jsonl").open("a") as file:
        file.write(json.dumps({"task": synthetic(2, query, SOLUTION)}) + "\n")
    with pytest.raises(SystemExit, match="contamination"):
        read(project)

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentevolver.trainer.monitor.console import WIDTH, Console, Pace
from agentevolver.trainer.monitor.log import Status
from agentevolver.utils.files import append_jsonl

VALIDATION = {"val-core/pocket/reward/mean@4": 0.61, "val-core/pocket/reward/best@4/mean": 0.8}


def test_the_pace_says_what_is_left_once_it_is_known() -> None:
    now = iter([0.0, 60.0, 120.0, 130.0])
    pace = Pace(lambda: next(now))
    assert [pace.left("making", 0, 10), pace.left("making", 2, 10), pace.left("making", 10, 10)] == [
        "",
        ", 4 min left",
        "",
    ]
    assert pace.left("filling", 3, 10) == ""


def test_without_a_terminal_the_lines_tell_phase_step_validation_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, status = io.StringIO(), Status(tmp_path)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("agentevolver.trainer.monitor.console.REFRESH_S", 0.01)
    status.set("training", step=7, total_steps=7)  # an earlier run's
    # The trainer is on a node whose clock is late.
    late = SimpleNamespace(time=lambda: time.time() - 60)
    monkeypatch.setattr("agentevolver.trainer.monitor.log.time", late)

    def shown(text: str) -> None:
        deadline = time.monotonic() + 10
        while text not in out.getvalue():
            assert time.monotonic() < deadline, out.getvalue()
            time.sleep(0.01)

    with Console(tmp_path):
        for done in (1, 2):
            status.set(f"making tasks: {done} of 4 explorations, 0 tasks kept", done=done, total=4)
            shown(f"{done} of 4")
        status.set("training", step=0, total_steps=3)
        append_jsonl(tmp_path / "metrics.jsonl", {"step": 0, **VALIDATION})
        shown("avg@4")
        for step in (1, 2):
            append_jsonl(tmp_path / "metrics.jsonl", {"step": step, "rollout/reward/mean": 0.5, "rollout/success": 0.5})
            shown(f"step    {step}/3")
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("making tasks: 1 of 4")
    assert any(line.startswith("making tasks: 2 of 4") and line.endswith("left") for line in lines)
    assert any(line.startswith("step    2/3") and line.endswith("left") for line in lines)
    assert all(len(line) <= WIDTH for line in lines)

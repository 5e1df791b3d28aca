"""What was not measured is said: in the step's line, in the validation's, at the end of a run, and on the page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentevolver.launcher.ending import ending
from agentevolver.trainer.job import main as job
from agentevolver.trainer.metrics import rollout_flags, rollout_metrics, task_metrics, tool_metrics
from agentevolver.trainer.monitor.console import line_of, validation_lines
from agentevolver.trainer.monitor.findings import findings
from agentevolver.trainer.monitor.measured import Measured
from agentevolver.trainer.monitor.results import measured_of, validations_of
from agentevolver.trainer.no_signal import make_watch
from agentevolver.trainer.validation import Validation
from agentevolver.types import Trajectory
from agentevolver.utils.files import write_jsonl
from agentevolver.view.success import success_by
from agentevolver.view.trajectories import Trajectories
from experience_manager.settings import ExperienceSettings
from task_manager.report import Funnel
from tests.trajectories import trajectory

REFUSED = {"action": "I would", "observation": "err unknown", "refused": True, "truncated": True}
DONE = {"action": "done", "observation": "bye"}
TOO_LONG = "the opening messages have 689 tokens, data.max_prompt_length allows 192"


def rollout(*steps: dict[str, Any], graded: bool = True, **told: Any) -> Trajectory:
    outcome = {"outcome": {"score": 0.0, "success": False}} if graded else {"outcome": None}
    return trajectory(steps=steps, trajectory_id="g_0", **outcome, **told)


IDLE, ACTED = rollout(REFUSED, REFUSED), rollout(REFUSED, DONE)
UNBEGUN = rollout(graded=False, stop_reason="context_full", error=TOO_LONG)
CUT = rollout(DONE, stop_reason="context_full")
FAILED = rollout(graded=False, stop_reason="llm_error", error="gone")


def test_a_rollout_is_counted_by_what_kept_it_from_acting() -> None:
    mixed = Measured.of([IDLE, ACTED, UNBEGUN, CUT, FAILED, rollout({"kind": "plan"})])
    assert mixed.metrics("") == {"never_began": 1, "never_acted": 2, "cut": 1}
    assert (mixed.acted, mixed.failed, mixed.cut_replies, mixed.replies) == (2, 1, 3, 6) and mixed.problem() is None
    none = Measured.of([IDLE, UNBEGUN, FAILED]).problem() or ""
    assert TOO_LONG in none and "err unknown" in none and "response_length" in none and "1 failed (gone)" in none
    assert Measured.of([FAILED]).problem() == "no episode could be graded: gone"
    assert Measured().problem() is None


def test_a_step_in_which_nothing_acted_has_no_success_and_its_line_says_why() -> None:
    idle = rollout_metrics([IDLE, IDLE, UNBEGUN], 1.0)
    assert not {"rollout/success", "rollout/reward/mean"} & idle.keys() and idle["rollout/truncated_replies"] == 1.0
    line = line_of({"step": 1, **idle}, 2)
    assert "success not measured:  1 never began, 2 never acted of 3  100% of replies cut" in line
    some = line_of({"step": 1, **rollout_metrics([IDLE, ACTED, CUT], 1.0)})
    assert "success 0.000" in some and "1 never acted, 1 cut of 3" in some
    assert "rollout/truncated_replies" not in rollout_metrics([UNBEGUN], 1.0), "no reply, no share"
    assert tool_metrics(rollout({"calls": 0}).steps) == {"rollout/tool_calls_per_step": 0.0}, "no call, no share"
    shares = {**task_metrics([IDLE]), **rollout_flags([IDLE]), **Funnel().metrics()}
    assert not any("success" in name or "/rate/" in name for name in shares)
    assert "every action refused" in (make_watch(1, "grpo", 2).look([IDLE, IDLE]) or "")


def test_a_validated_source_in_which_nothing_acted_has_no_average() -> None:
    trajectories = [IDLE, UNBEGUN, ACTED]
    infos = {"masked": [0.0] * 3, "reward": [0.0] * 3, "success": [0.0] * 3, "trajectory": []}
    seen = Validation(["a", "a", "b"], ["x", "x", "y"], [4, 0, 4], infos, trajectories)
    record = {"step": 0, **seen.metrics(ExperienceSettings(), 1)}
    assert [one.source for one in validations_of(record)] == ["b"] and record["val-aux/never_acted"] == 2
    assert not any(name.startswith(("val-core/a/", "val-aux/a/success")) for name in record)
    _, measured, unmeasured = validation_lines(validations_of(record), {}, measured_of(record))
    assert "0.000 avg@1" in measured and "not measured: 1 never began, 1 never acted of 2" in unmeasured


def run(folder: Path, *steps: dict[str, float], rollouts: list[Trajectory]) -> Path:
    write_jsonl(folder / "metrics.jsonl", [{"step": i, **own} for i, own in enumerate(steps, 1)])
    write_jsonl(folder / "trajectories" / f"step_{len(steps)}.jsonl", [one.to_dict() for one in rollouts])
    return folder


def test_a_run_in_which_nothing_acted_ends_with_a_reason_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = rollout_metrics([IDLE, IDLE], 1.0)
    run(tmp_path, step, step, rollouts=[IDLE, IDLE])
    first, *_, last, cut = ending(tmp_path, code=3, seconds=1.0)
    assert "finished, but" in first and "no rollout of 2 training steps acted" in last and "err unknown" in last
    assert "100% of the replies were cut" in cut
    assert not any("export" in line or "resume" in line for line in ending(tmp_path, code=3, seconds=1.0))
    for name in ("check", "_ask_verl", "prepare", "_train"):
        monkeypatch.setattr(job, name, lambda *_: None)
    monkeypatch.setattr(job, "begin", lambda _: (None, SimpleNamespace(experiment_dir=tmp_path)))
    assert job.main(["--config", "x"]) == 3 and "no rollout of 2 training steps acted" in capsys.readouterr().err
    run(tmp_path, step, rollout_metrics([IDLE, ACTED], 1.0), rollouts=[ACTED])
    assert job.main(["--config", "x"]) == 0
    groups = success_by(Trajectories(run(tmp_path / "page", step, rollouts=[IDLE]) / "trajectories"), "task", 1)
    assert [(one["success"], one["acted"]) for one in groups["groups"]] == [(None, 0)]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"rollout/signal": 0.0}, "none of 2 training steps had a signal"),
        ({"prm/failed": 8.0, "prm/labelled": 0.0}, "labelled no rollout and failed on 16"),
        ({"exp_manager/distil/failed_extraction": 10.0}, "gave no experience and failed on 10 calls"),
        ({"exp_manager/distil/groups": 4.0, "exp_manager/pool_size": 0.0}, "the pool of experience is empty"),
        ({"prm/failed": 8.0, "prm/labelled": 1.0, "rollout/signal": 1.0, "rollout/truncated_replies": 0.2}, ""),
    ],
)
def test_a_part_that_did_nothing_is_said_at_the_end_of_the_run(
    tmp_path: Path, step: dict[str, float], said: str
) -> None:
    found = findings(run(tmp_path, step, step, rollouts=[ACTED]))
    assert said in found[0] if said else not found

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentevolver.trainer.monitor.results import compare, spent, task_scores
from agentevolver.utils.files import compress, write_jsonl
from agentevolver.utils.statistics import Estimate


def rollout(task: str, score: float | None, **more: Any) -> dict[str, Any]:
    own = {"task_id": task, "env_type": "pocket", "metadata": {"split": "dev"}}
    return {"task": own, "outcome": None if score is None else {"score": score}, **more}


def run(folder: Path, *, guided: bool = False) -> Path:
    """A folder with validations at step 0 and 4, the first one's trajectories compressed."""
    source = "pocket"
    scores = {
        0: {"a": (0.0, 0.0), "b": (1.0, 0.0), "c": (0.5, 0.5)},
        4: {"a": (1.0, 0.0), "b": (1.0, 1.0), "c": (0.5, 0.5)},
    }
    metrics = []
    for step, tasks in scores.items():
        own = [rollout(task, score) for task, each in tasks.items() for score in each]
        more = [rollout("a", 1.0, guidance_wanted=True)] if guided else []
        write_jsonl(folder / "validation" / f"step_{step}.jsonl", [*own, *more, rollout("z", None)])
        average = sum(map(sum, tasks.values())) / 6
        metrics.append({"step": step, f"val-core/{source}/reward/mean@2": average})
        if guided:
            metrics[-1][f"val-core/{source}/guided/reward/mean@1"] = 1.0
    compress(folder / "validation" / "step_0.jsonl")
    write_jsonl(folder / "metrics.jsonl", [*metrics, {"step": 6, "rollout/reward/mean": 0.5}])
    return folder


@pytest.mark.parametrize("guided", [False, True])
def test_before_and_after_are_compared_task_by_task(tmp_path: Path, guided: bool) -> None:
    plain, *with_experience = compare(run(tmp_path, guided=guided))
    assert (plain.first.step, plain.last.step, plain.last.n) == (0, 4, 2)
    assert plain.before == Estimate(pytest.approx(1 / 3), plain.before.half, 3)
    assert (
        plain.gain.mean == pytest.approx(1 / 3)
        and plain.gain.n == 3
        and plain.gain.half == pytest.approx(0.7171, abs=1e-4)
    )
    assert [one.source for one in with_experience] == (["pocket/guided"] if guided else [])
    if guided:
        assert with_experience[0].after == Estimate(1.0, None, 1)


def test_what_is_gone_or_torn_is_left_out(tmp_path: Path) -> None:
    folder = run(tmp_path)
    (folder / "validation" / "step_4.jsonl").write_text('{"task": 1, "outcome": {"score": 1}}\n')
    (one,) = compare(folder)
    assert one.after is None and one.gain is None and one.last.average == pytest.approx(2 / 3)
    assert task_scores(folder, 99) == {} and spent(tmp_path / "none.sqlite") is None

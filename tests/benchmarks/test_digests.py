"""A digest sees what a run did and not how long it took."""

import json
from pathlib import Path

from benchmarks.digests import compare, digest, read


def leave(folder: Path, *, seconds: float, reward: float = 1.0, entropy: float = 0.3) -> Path:
    step = {"action": "done", "observation": "bye", "reward": reward, "env_s": seconds}
    rollout = {"trajectory_id": "a_0", "messages": [], "steps": [step], "stop_reason": "finished", "seconds": seconds}
    files = {
        "metrics.jsonl": {"step": 1, "time": seconds, "timing_s/step": seconds, "actor/entropy": entropy},
        "trajectories/step_1.jsonl": {**rollout, "outcome": {"score": reward}},
        "logs/driver.jsonl": {"seconds": seconds},
    }
    for name, record in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(record) + "\n")
    (folder / "config.yaml").write_text("")
    return folder


def test_runs_are_compared_by_what_they_did(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    before = leave(tmp_path / "before", seconds=1)
    assert digest(read(before)) == digest(read(leave(tmp_path / "slower", seconds=2)))
    assert compare(before, tmp_path / "slower", ()) == 0
    leave(tmp_path / "other", seconds=1, reward=0.5, entropy=0.4)
    assert compare(before, tmp_path / "other", ()) == 1
    said = capsys.readouterr().out
    assert "metrics.jsonl: .1[0].actor/entropy: 0.3 / 0.4" in said and "trajectories/step_1.jsonl: .a_0" in said
    assert compare(before, leave(tmp_path / "other", seconds=1, entropy=0.4), ["actor/"]) == 0

"""The built-in flow as an agent of one's own, on the whole stack: with equal seeds the run is the same run."""

from pathlib import Path

import pytest

from agentevolver.utils.files import read_jsonl
from benchmarks.digests import differing
from tests.e2e.conftest import Finished
from tests.e2e.runs import SMALL, Launched

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

STEPS = (1, 2)
WANTED = (
    *SMALL,
    "trainer.total_training_steps=3",  # as `basic_run` has it
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
)


def said(directory: Path) -> dict[str, list]:
    """Return a run's training rows and trajectories, without times and what the gateway tells of itself."""
    found = {f"samples/{step}": read_jsonl(directory / "samples" / f"step_{step}.jsonl") for step in STEPS}
    for step in STEPS:
        records = read_jsonl(directory / "trajectories" / f"step_{step}.jsonl")
        found[f"trajectories/{step}"] = [
            {
                **{key: value for key, value in record.items() if key not in ("seconds", "gateway")},
                "steps": [{k: v for k, v in s.items() if k not in ("env_s", "generate_s")} for s in record["steps"]],
            }
            for record in records
        ]
    return found


def test_the_built_in_flow_as_an_agent_gives_the_same_run(basic_run: Finished, tmp_path: Path) -> None:
    run = Launched(tmp_path, "gateway", WANTED, "gateway")
    try:
        assert run.wait() == 0, run.output
        assert run.left_behind() == set()
    finally:
        run.end()
    basic, gateway = said(basic_run.directory), said(run.directory)
    assert all(basic[f"samples/{step}"] for step in STEPS)
    assert differing(basic, gateway) == []
    metrics = read_jsonl(run.directory / "metrics.jsonl")
    assert {record["gateway/chains_per_rollout"] for record in metrics if record["step"]} == {1.0}

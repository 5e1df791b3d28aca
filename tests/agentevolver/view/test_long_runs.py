"""A run of many steps, whose earlier files are compressed."""

from pathlib import Path

from agentevolver.utils.files import compress
from agentevolver.view.experiment import Experiment
from agentevolver.view.samples import Samples
from agentevolver.view.trajectories import Filter, Trajectories
from tests.agentevolver.view.runs import make_run


def test_what_was_compressed_is_shown_like_the_rest(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a" / "run")
    trajectories, samples = Trajectories(run / "trajectories"), Samples(Experiment(run))
    before = trajectories.one(2, 3), samples.rows(2, trajectories.one(2, 1)["summary"]["id"])
    assert before[1]
    for name in ("trajectories", "samples"):
        compress(run / name / "step_2.jsonl")
    assert (trajectories.one(2, 3), samples.rows(2, trajectories.one(2, 1)["summary"]["id"])) == before
    assert [row["step"] for row in trajectories.find(Filter(step=2))["rows"]] == [2] * 8
    assert {row["step"] for row in trajectories.find(Filter())["rows"]} == {1, 2, 3}

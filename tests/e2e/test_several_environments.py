"""Two environments in one run, as the page on them says: each step has the weights' shares, and what happened is told
apart."""

from collections import Counter

import pytest
import yaml

from agentevolver.utils.files import read_jsonl
from agentevolver.view.experiment import Experiment
from agentevolver.view.tasks import Tasks
from agentevolver.view.trajectories import Filter, Trajectories
from tests.e2e.runs import ROOT, launch

pytestmark = [pytest.mark.e2e, pytest.mark.examples, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs" / "env_service.md").read_text(encoding="utf-8")
SNIPPET = PAGE.split("\n## Several environments in one run\n")[1].split("```yaml\n")[1].split("```")[0]
RUN = (
    "data.train_batch_size=6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=3",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.val_kwargs.n=1",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.test_freq=2",
    "trainer.save_freq=-1",
)


def flat(tree, path=""):
    """The snippet as overrides of the command line; a mapping of weights is set key by key."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}={str(value).replace(chr(39), '')}"


def test_two_environments_are_trained_on_in_their_shares_and_told_apart(tmp_path):
    launched = launch(tmp_path, "two", *flat(yaml.safe_load(SNIPPET)), *RUN)
    try:
        assert launched.wait(600) == 0, launched.output
    finally:
        launched.end()
    folder = launched.directory
    for step in (1, 2):
        rolled = Counter(
            record["task"]["env_type"] for record in read_jsonl(folder / f"trajectories/step_{step}.jsonl")
        )
        assert rolled == {"pocket": 8, "gymnasium": 4}, "two rollouts of four tasks and of two"
    records = {record["step"]: record for record in read_jsonl(folder / "metrics.jsonl")}
    for name, count in (("pocket", 8), ("gymnasium", 4)):
        assert [records[step][f"rollout/trajectories/{name}"] for step in (1, 2)] == [count, count]
        assert records[1][f"rollout/failed/{name}"] == 0 and f"rollout/success/{name}" in records[2]
        assert f"val-core/{name}/reward/mean@1" in records[2]
    assert Experiment(folder).environments() == ["pocket", "gymnasium"]
    counts = Tasks(folder / "tasks").overview()["environments"]
    assert counts["gymnasium"] == {"train": 348, "validation": 56} and counts["pocket"]["validation"] == 8
    shown = Trajectories(folder / "trajectories").find(Filter(environment="gymnasium"))["rows"]
    assert len(shown) == 8 and {row["environment"] for row in shown} == {"gymnasium"}

"""A real run on the environment's tasks and tasks of its own making, with step labels: what was made, graded and credited is trained on."""

from statistics import fmean, pstdev

import pytest

from agentevolver.tracking import read_jsonl
from tests.e2e.conftest import Finished
from tests.e2e.runs import launch, temporary_things

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ALPHA, SYNTHETIC_SCALE = 0.1, 0.5
STEPS = (1, 2)
WANTED = (
    "data.train_batch_size=8",
    "task_manager.n=1",
    "task_manager.max_seed_tasks=16",
    "task_manager.mixture.synthetic_data_ratio=1",
    f"task_manager.mixture.synthetic_advantage_scale={SYNTHETIC_SCALE}",
    "attribution_driven_credit_assignment.enable=true",
    f"attribution_driven_credit_assignment.adca_grpo.alpha={ALPHA}",
    f"trainer.total_training_steps={len(STEPS)}",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    before = temporary_things()
    launched = launch(tmp_path_factory.mktemp("questioning"), "made", *WANTED)
    try:
        returncode = launched.wait()
        yield Finished(launched, returncode, temporary_things() - before)
    finally:
        launched.end()


def trajectories(run):
    return [record for step in STEPS for record in read_jsonl(run.directory / "trajectories" / f"step_{step}.jsonl")]


def test_the_run_ends_well_and_leaves_nothing_behind(run):
    assert run.returncode == 0, run.launched.output
    assert run.launched.processes() == set()
    assert run.left_behind == set()


def test_the_funnel_counts_the_tasks_that_were_kept(run):
    first = read_jsonl(run.directory / "metrics.jsonl")[0]
    kept = read_jsonl(run.directory / "tasks" / "tasks_explored.train.jsonl")
    assert first["questioning/explored"] == 16
    assert first["questioning/kept"] == len(kept) >= 16


def test_both_kinds_of_tasks_are_rolled_out_each_with_its_own_grader(run):
    made = {line["task"]["task_id"]: line["task"] for line in read_jsonl(run.directory / "tasks" / "tasks_explored.train.jsonl")}
    records = trajectories(run)
    assert {record["task"]["open_query"] for record in records} == {False, True}
    for record in records:
        task = record["task"]
        assert task["evaluator"] == ("state" if task["open_query"] else "env")
        assert (task["task_id"] in made) == task["open_query"]
        if task["open_query"]:
            assert record["messages"][1]["content"] == made[task["task_id"]]["query"]


def test_a_rollout_that_did_what_the_reference_does_succeeds_and_one_that_did_nothing_fails(run):
    """Of the state grader's verdicts, those that can be told from the actions alone."""
    told = 0
    for record in trajectories(run):
        if not record["task"]["open_query"] or record["stop_reason"] != "finished":
            continue
        actions, solution = [step["action"] for step in record["steps"]], record["task"]["metadata"]["solution"]
        if actions == solution:
            told += 1
            assert record["outcome"]["score"] == 1.0
        elif actions == ["done"]:
            assert record["outcome"]["score"] == 0.0
    assert told > 0


def test_every_finished_rollout_was_labelled_step_by_step_or_the_failure_is_told(run):
    records = trajectories(run)
    labelled = [record for record in records if record["attribution"]["status"] == "labelled"]
    assert len(labelled) > 0.8 * len(records)
    for record in labelled:
        assert len(record["attribution"]["good"]) == len(record["steps"])
    for record in records:
        assert record["attribution"]["status"] == "labelled" or record["attribution"]["reason"]


def expected_advantages(group):
    """ADCA-GRPO as its paper's implementation has it, slowly: labels and outcomes standardised apart, joined, summed from the end."""
    labels = {r["rollout_id"]: [1.0 if good else -1.0 for good in r["attribution"]["good"]] for r in group if r["attribution"]["good"]}
    centre = fmean(fmean(row) for row in labels.values())
    deviation = fmean(fmean((x - centre) ** 2 for x in row) for row in labels.values()) ** 0.5
    outcomes = [r["outcome"]["score"] for r in group]
    for record in group:
        z = [(x - centre) / deviation if deviation > 1e-8 else 0.0 for x in labels.get(record["rollout_id"], [0.0] * len(record["steps"]))]
        rewards = [ALPHA * x for x in z]
        rewards[-1] += (record["outcome"]["score"] - fmean(outcomes)) / pstdev(outcomes) if pstdev(outcomes) > 1e-8 else 0.0
        scale = SYNTHETIC_SCALE if record["task"]["open_query"] else 1.0
        yield record, [scale * sum(rewards[i:]) for i in range(len(rewards))]


def test_labels_and_outcomes_became_the_advantages_that_were_trained_on(run):
    checked = 0
    for step in STEPS:
        groups = {}
        for record in read_jsonl(run.directory / "trajectories" / f"step_{step}.jsonl"):
            groups.setdefault(record["group_id"], []).append(record)
        rows = {row["key"].rpartition("_")[0]: row for row in read_jsonl(run.directory / "samples" / f"step_{step}.jsonl")}
        for group in groups.values():
            if any(record["outcome"] is None for record in group):
                continue
            for record, advantages in expected_advantages(group):
                row = rows[record["trajectory_id"]]
                wanted = [advantages[index] if index >= 0 else 0.0 for index in row["step_ids"]]
                assert row["advantages"] == pytest.approx(wanted, abs=1e-5)
                checked += any(advantages)
    assert checked > 0

"""A real run on the environment's tasks and tasks of its own making, with step labels and guidance by experience.

What was made, graded and credited is trained on; what guided a rollout is not.
"""

from statistics import fmean, pstdev

import pytest
from transformers import AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.utils.files import read_jsonl
from experience_manager.guide import strip
from experience_manager.store import Store
from tests.e2e.test_exactness import furthest, log_probs, model_after
from tests.e2e.whole_loop import ALPHA, STEPS, SYNTHETIC_SCALE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def injected_of(record):
    return record["guidance"]["injected"] if record["guidance"] else ""


@pytest.fixture
def run(whole_loop):
    return whole_loop


def trajectories(run):
    return [record for step in STEPS for record in read_jsonl(run.directory / "trajectories" / f"step_{step}.jsonl")]


def test_the_run_ends_well_and_leaves_nothing_behind(run):
    assert run.returncode == 0, run.launched.output
    assert run.launched.processes() == set()
    assert run.left_behind == set()


def test_both_kinds_of_tasks_are_rolled_out_each_with_its_own_grader(run):
    made = {
        line["task"]["task_id"]: line["task"]
        for line in read_jsonl(run.directory / "tasks" / "tasks_explored.train.jsonl")
    }
    records = trajectories(run)
    assert {record["task"]["open_query"] for record in records} == {False, True}
    for record in records:
        task = record["task"]
        assert task["evaluator"] == ("state" if task["open_query"] else "env")
        assert (task["task_id"] in made) == task["open_query"]
        if task["open_query"]:
            assert strip(record["messages"], injected_of(record))[1]["content"] == made[task["task_id"]]["query"]


def test_every_finished_rollout_was_labelled_step_by_step_or_the_failure_is_told(run):
    records = trajectories(run)
    labelled = [record for record in records if record["attribution"]["status"] == "labelled"]
    assert len(labelled) > 0.8 * len(records)
    for record in labelled:
        assert len(record["attribution"]["good"]) == len(record["steps"])
    for record in records:
        assert record["attribution"]["status"] == "labelled" or record["attribution"]["reason"]


def expected_advantages(group):
    """ADCA-GRPO as its paper's implementation has it, slowly: labels and outcomes standardised apart, joined, summed
    from the end."""
    labels = {
        r["rollout_id"]: [1.0 if good else -1.0 for good in r["attribution"]["good"]]
        for r in group
        if r["attribution"]["good"]
    }
    centre = fmean(fmean(row) for row in labels.values())
    deviation = fmean(fmean((x - centre) ** 2 for x in row) for row in labels.values()) ** 0.5
    outcomes = [r["outcome"]["score"] for r in group]
    for record in group:
        z = [
            (x - centre) / deviation if deviation > 1e-8 else 0.0
            for x in labels.get(record["rollout_id"], [0.0] * len(record["steps"]))
        ]
        rewards = [ALPHA * x for x in z]
        rewards[-1] += (
            (record["outcome"]["score"] - fmean(outcomes)) / pstdev(outcomes) if pstdev(outcomes) > 1e-8 else 0.0
        )
        scale = SYNTHETIC_SCALE if record["task"]["open_query"] else 1.0
        yield record, [scale * sum(rewards[i:]) for i in range(len(rewards))]


def test_labels_and_outcomes_became_the_advantages_that_were_trained_on(run):
    checked = 0
    for step in STEPS:
        groups = {}
        for record in read_jsonl(run.directory / "trajectories" / f"step_{step}.jsonl"):
            groups.setdefault(record["group_id"], []).append(record)
        rows = {
            row["key"].rpartition("_")[0]: row for row in read_jsonl(run.directory / "samples" / f"step_{step}.jsonl")
        }
        for group in groups.values():
            if any(record["outcome"] is None for record in group):
                continue
            for record, advantages in expected_advantages(group):
                row = rows[record["trajectory_id"]]
                wanted = [advantages[index] if index >= 0 else 0.0 for index in row["step_ids"]]
                assert row["advantages"] == pytest.approx(wanted, abs=1e-5)
                checked += any(advantages)
    assert checked > 0


def rows_of(run, step):
    """Rows that were trained on, each with its trajectory's record."""
    records = {
        record["trajectory_id"]: record for record in read_jsonl(run.directory / "trajectories" / f"step_{step}.jsonl")
    }
    return [
        (row, records[row["key"].rpartition("_")[0]])
        for row in read_jsonl(run.directory / "samples" / f"step_{step}.jsonl")
    ]


def opening_ids(tokenizer, messages):
    return tokenizer.apply_chat_template(messages[:2], add_generation_prompt=True, return_dict=False)


def test_the_pool_was_filled_before_the_first_step_from_unguided_rollouts_of_training_tasks(run):
    warm = read_jsonl(run.directory / "trajectories" / "warm_start_0.jsonl")
    assert len(warm) == 16 and not any(
        record["guided"] or record["task"]["metadata"].get("validation") for record in warm
    )
    first = read_jsonl(run.directory / "metrics.jsonl")[0]
    assert first["exp_manager/pool_size"] > 0 and first["exp_manager/distil/groups"] >= 8
    with Store(run.directory / "experience.sqlite") as store:
        kept = store.records("default")
        sources = {identifier for experience in kept for identifier in experience.trajectory_ids}
        assert sources & {record["trajectory_id"] for record in warm}
        guided = sum(record["guided"] for record in trajectories(run))
        assert 0 < sum(experience.uses for experience in kept) <= 10 * guided


def test_flags_are_true_to_what_was_injected_and_half_of_each_group_was_to_be_guided(run):
    wanted: dict[str, int] = {}
    for record in trajectories(run):
        wanted[record["group_id"]] = wanted.get(record["group_id"], 0) + record["guidance_wanted"]
        shown, guidance = record["messages"][1]["content"], record["guidance"]
        assert record["guided"] == record["stripped"] == (guidance is not None) == shown.startswith("tip ")
        if guidance is not None:
            assert (
                shown.startswith(guidance["injected"])
                and guidance["text"] in guidance["injected"]
                and guidance["experience_ids"]
            )
        else:
            assert not record["guidance_wanted"] or record["guidance_problem"]
    assert set(wanted.values()) == {2}


def test_no_training_prompt_holds_guidance_and_each_is_the_plain_opening_token_for_token(run):
    tokenizer, guided = AutoTokenizer.from_pretrained(seed_policy_path()), 0
    for step in STEPS:
        for row, record in rows_of(run, step):
            assert row["prompts"] == opening_ids(tokenizer, strip(record["messages"], injected_of(record)))
            assert record["steps"][0]["prompt_tokens"] == len(opening_ids(tokenizer, record["messages"]))
            assert row["guided"] == float(record["guided"])
            assert row["clip_ratio_high"] == pytest.approx(0.6 if record["guided"] else 0.28)
            if record["guided"]:
                guided += 1
                assert "tip " not in tokenizer.decode(row["prompts"]) and record["guidance"][
                    "text"
                ] not in tokenizer.decode(row["prompts"])
    assert guided > 0


def test_guided_rollouts_were_sampled_with_guidance_and_their_old_log_probs_are_those_without(run):
    tokenizer, seed = AutoTokenizer.from_pretrained(seed_policy_path()), model_after(run, 0)
    guided = [(row, record) for row, record in rows_of(run, 1) if record["guided"]]
    assert furthest(seed, [row for row, _ in guided], "old_log_probs") <= 1e-4
    shown = [{**row, "prompts": opening_ids(tokenizer, record["messages"])} for row, record in guided]
    assert furthest(seed, shown, "rollout_log_probs") <= 1e-4
    apart = max(
        (log_probs(seed, row) - log_probs(seed, seen)).abs().max() for (row, _), seen in zip(guided, shown, strict=True)
    )
    assert apart > 1e-3, "the guidance made no difference to any rollout"

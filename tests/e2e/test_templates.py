"""A real run in which the episodes take turns between all context templates and both flows: whatever was edited, what
is trained on is what was sampled, after the prompt it was sampled after."""

import os
from collections import Counter, defaultdict

import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.utils.files import read_jsonl
from context_manager.registry import TEMPLATES
from tests.e2e.runs import ROOT, launch
from tests.e2e.test_exactness import furthest, model_after, samples

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROLLOUT = "actor_rollout_ref.rollout"
RUN = (
    "env_service.env_type=pocket_long",
    f"{ROLLOUT}.context_template=mixed:EachInTurn",
    f"{ROLLOUT}.agent_flow=mixed:BothInTurn",
    f"{ROLLOUT}.context_trigger_tokens=260",
    f"{ROLLOUT}.context_keep_turns=3",
    f"{ROLLOUT}.multi_turn.max_steps=20",
    f"{ROLLOUT}.max_model_len=1280",
    "data.max_prompt_length=320",
    "data.max_response_length=960",
    "exp_manager.kl_to=old",
    "trainer.total_training_steps=1",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
)


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory):
    path = os.pathsep.join(filter(None, [str(ROOT / "tests" / "e2e"), str(ROOT), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        launched = launch(tmp_path_factory.mktemp("mixed"), "templates", *RUN)
    try:
        assert launched.wait(900) == 0, launched.output
        yield launched
    finally:
        launched.end()


@pytest.fixture(scope="module")
def trajectories(mixed_run):
    return {t["trajectory_id"]: t for t in read_jsonl(mixed_run.directory / "trajectories" / "step_1.jsonl")}


@pytest.fixture(scope="module")
def rows(mixed_run, trajectories):
    """The samples of the step by the template that they come from."""
    by_template = defaultdict(list)
    for row in samples(mixed_run, 1):
        by_template[template_of(trajectories[row["key"].rpartition("_")[0]])].append(row)
    return by_template


def template_of(trajectory):
    return trajectory["context_edits"][0]["text"]


def test_every_template_edited_and_both_flows_acted(trajectories, rows):
    assert set(rows) == set(TEMPLATES)
    kinds = {name: Counter() for name in TEMPLATES}
    for trajectory in trajectories.values():
        assert trajectory["outcome"] is not None and trajectory["dropped_samples"] == {}
        kinds[template_of(trajectory)].update(step["kind"] for step in trajectory["steps"])
    assert (
        kinds["sliding_window"]["summary"]
        and kinds["self_managed"]["context"]
        and sum(kinds.values(), Counter())["plan"]
    )
    episodes = Counter(template_of(trajectory) for trajectory in trajectories.values())
    assert len(rows["causal"]) == episodes["causal"]
    assert all(len(rows[name]) > episodes[name] for name in TEMPLATES if name != "causal"), (
        "an edited episode is several samples"
    )


@pytest.fixture(scope="module")
def metrics(mixed_run):
    (step,) = [line for line in read_jsonl(mixed_run.directory / "metrics.jsonl") if "actor/pg_loss" in line]
    return step


def test_mini_batches_are_tasks_however_many_rows_an_episode_became(mixed_run, metrics, rows, trajectories):
    assert sum(map(len, rows.values())) > len(trajectories)
    config = OmegaConf.load(mixed_run.directory / "config.yaml")
    assert (
        metrics["actor/optimiser_steps"]
        == config.data.train_batch_size / config.actor_rollout_ref.actor.ppo_mini_batch_size
    )


@pytest.mark.parametrize("template", TEMPLATES)
def test_log_probs_of_engine_and_actor_equal_a_plain_forward_pass(mixed_run, rows, template):
    seed = model_after(mixed_run, 0)
    assert furthest(seed, rows[template], "rollout_log_probs") <= 1e-4
    assert furthest(seed, rows[template], "old_log_probs") <= 1e-4


def test_every_sampled_token_is_trained_on_once_after_the_prompt_that_was_sent(trajectories, rows):
    tokenizer = AutoTokenizer.from_pretrained(seed_policy_path())
    seen = defaultdict(set)
    for row in (row for some in rows.values() for row in some):
        trajectory = row["key"].rpartition("_")[0]
        assert row["response_mask"] == [int(step >= 0) for step in row["step_ids"]]
        for index in {step for step in row["step_ids"] if step >= 0}:
            step = trajectories[trajectory]["steps"][index]
            ids = [token for token, owner in zip(row["responses"], row["step_ids"], strict=True) if owner == index]
            assert len(ids) == step["action_tokens"]
            assert tokenizer.decode(ids, skip_special_tokens=True) == step["action"]
            assert len(row["prompts"]) + row["step_ids"].index(index) == step["prompt_tokens"]
            assert index not in seen[trajectory]
            seen[trajectory].add(index)
    assert all(seen[name] == set(range(len(trajectory["steps"]))) for name, trajectory in trajectories.items())

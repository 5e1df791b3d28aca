"""A real run: what was trained on is what was sampled, and what was sampled came from the weights that were trained."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentevolver.recipes.offline.seed import seed_policy_path
from agentevolver.utils.files import read_jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def samples(run, step):
    return read_jsonl(run.directory / "samples" / f"step_{step}.jsonl")


def model_after(run, step):
    """The policy after a step: the seed policy, or what the checkpoint holds."""
    path = (
        run.directory / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface" if step else seed_policy_path()
    )
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@torch.no_grad()
def log_probs(model, sample):
    """Log-probs of a sample's response under Hugging Face's forward pass, at temperature 1."""
    prompt, response = sample["prompts"], torch.tensor(sample["responses"])
    logits = model(torch.tensor([[*prompt, *sample["responses"]]])).logits[0].log_softmax(-1)
    return logits[len(prompt) - 1 : -1].gather(1, response[:, None])[:, 0]


def furthest(model, rows, column):
    """The greatest difference on sampled tokens between a recorded column and the model's own log-probs."""
    worst = 0.0
    for row in rows:
        sampled = torch.tensor(row["response_mask"]).bool()
        worst = max(worst, (log_probs(model, row) - torch.tensor(row[column]))[sampled].abs().max().item())
    return worst


def test_the_run_ends_well_and_leaves_its_records(basic_run):
    assert basic_run.returncode == 0, basic_run.launched.output
    metrics = read_jsonl(basic_run.directory / "metrics.jsonl")
    assert [record["step"] for record in metrics] == [0, 1, 2, 3]
    assert "val-core/pocket/reward/mean@2" in metrics[0] and "val-core/pocket/reward/best@2/mean" in metrics[3]
    assert metrics[1]["training/num_not_none_traj"] == 16
    assert list((basic_run.directory / "tensorboard").rglob("events*"))
    assert len(read_jsonl(basic_run.directory / "trajectories" / "step_1.jsonl")) == 16
    assert len(read_jsonl(basic_run.directory / "validation" / "step_3.jsonl")) == 16


def test_nothing_is_left_behind(basic_run):
    assert basic_run.launched.processes() == set()
    assert basic_run.left_behind == set()


def test_log_probs_of_engine_and_actor_equal_a_plain_forward_pass(basic_run):
    seed, rows = model_after(basic_run, 0), samples(basic_run, 1)
    assert len(rows) == 16
    assert furthest(seed, rows, "rollout_log_probs") <= 1e-4
    assert furthest(seed, rows, "old_log_probs") <= 1e-4


@pytest.mark.parametrize("step", [2, 3])
def test_the_engine_samples_from_the_weights_of_the_step_before(basic_run, step):
    trained, rows = model_after(basic_run, step - 1), samples(basic_run, step)
    assert furthest(trained, rows, "rollout_log_probs") <= 1e-4
    assert furthest(trained, rows, "old_log_probs") <= 1e-4
    assert furthest(model_after(basic_run, step - 2), rows, "rollout_log_probs") > 1e-3, (
        "the weights in vLLM did not change"
    )


def test_masks_cover_the_tokens_of_the_recorded_actions_and_nothing_else(basic_run):
    tokenizer = AutoTokenizer.from_pretrained(seed_policy_path())
    trajectories = {t["trajectory_id"]: t for t in read_jsonl(basic_run.directory / "trajectories" / "step_1.jsonl")}
    for row in samples(basic_run, 1):
        steps = trajectories[row["key"].rpartition("_")[0]]["steps"]
        for step in steps:
            ids = [t for t, s in zip(row["responses"], row["step_ids"], strict=True) if s == step["index"]]
            assert len(ids) == step["action_tokens"]
            assert tokenizer.decode(ids, skip_special_tokens=True) == step["action"]
        assert sum(row["response_mask"]) == sum(step["action_tokens"] for step in steps)
        assert row["response_mask"] == [int(s >= 0) for s in row["step_ids"]]


def test_no_token_was_encoded_again(basic_run):
    """Every prompt that was sent is the sample's own ids up to that action: lengths recorded at the calls match their
    places."""
    trajectories = {t["trajectory_id"]: t for t in read_jsonl(basic_run.directory / "trajectories" / "step_1.jsonl")}
    for row in samples(basic_run, 1):
        for step in trajectories[row["key"].rpartition("_")[0]]["steps"]:
            assert len(row["prompts"]) + row["step_ids"].index(step["index"]) == step["prompt_tokens"]


def test_advantages_are_those_of_the_rollout_group(basic_run):
    rows = samples(basic_run, 1)
    scores = {
        t["trajectory_id"]: t["outcome"]["score"]
        for t in read_jsonl(basic_run.directory / "trajectories" / "step_1.jsonl")
    }
    groups: dict[str, list[float]] = {}
    for trajectory, score in scores.items():
        groups.setdefault(trajectory.rpartition("_")[0], []).append(score)
    for row in rows:
        trajectory = row["key"].rpartition("_")[0]
        group = torch.tensor(groups[trajectory.rpartition("_")[0]])
        expected = (scores[trajectory] - group.mean()) / (group.std() + 1e-6)
        for advantage, sampled in zip(row["advantages"], row["response_mask"], strict=True):
            assert advantage == pytest.approx(expected.item() * sampled, abs=1e-4)

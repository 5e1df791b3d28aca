"""Two ranks and two engines on real Ray and vLLM, and one rank that goes on from their checkpoint."""

import json

import pytest

from tests.e2e.runs import command_of, launch
from tests.e2e.test_exactness import furthest, model_after, samples

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(1800)]
KEYS = ("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=1")


def engines(run):
    return [process for process in run.processes() if "EngineCore" in command_of(process)]


def ranks_of(run, step):
    return json.loads(
        (run.directory / "checkpoints" / f"global_step_{step}" / "actor" / "fsdp_config.json").read_text()
    )["world_size"]


def test_two_ranks_train_two_engines_and_one_rank_goes_on(tmp_path):
    both = launch(tmp_path, "ranks", "trainer.n_gpus_per_node=2", "trainer.total_training_steps=2", *KEYS)
    try:
        both.wait_for(both.steps_done, "step", timeout_s=900)
        assert len(engines(both)) == 2
        assert both.wait() == 0, both.output
    finally:
        both.end()
    assert ranks_of(both, 2) == 2
    for step in (1, 2):
        rows = samples(both, step)
        assert len(rows) == 16
        assert furthest(model_after(both, step - 1), rows, "rollout_log_probs") <= 1e-4
        assert furthest(model_after(both, step - 1), rows, "old_log_probs") <= 1e-4
    one = launch(tmp_path, "ranks", "trainer.n_gpus_per_node=1", "trainer.total_training_steps=3", *KEYS)
    try:
        assert one.wait() == 0, one.output
    finally:
        one.end()
    assert one.steps_done() == [3] and ranks_of(one, 3) == 1
    rows = samples(one, 3)
    assert furthest(model_after(one, 2), rows, "old_log_probs") <= 1e-4, "the weights are not those of the checkpoint"
    assert furthest(model_after(one, 2), rows, "rollout_log_probs") <= 1e-4
    assert furthest(model_after(one, 1), rows, "old_log_probs") > 1e-3, "nothing was learned that could have been lost"

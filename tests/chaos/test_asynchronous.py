"""Rollouts that go on over updates, for real: with step labels and guidance they are exact, and a kill in the middle of
a step takes nothing that was promised.

Promised of a resume are weights, optimiser, data position and finished rollouts; groups that were being rolled out
begin anew.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentevolver.trainer.mismatch import MEAN, STALE
from agentevolver.utils.files import read_jsonl
from tests.e2e.runs import Launched, kill
from tests.e2e.test_exactness import log_probs, model_after, samples

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(900)]

TASKS_A_STEP, ROLLOUTS = 4, 4
ASYNC = (
    "trainer.v1.trainer_mode=agentevolver_async",
    "trainer.val_before_train=false",
    "env_service.env_params.latency.share=0.2",
    "env_service.env_params.latency.seconds=1.0",
)
GUIDED = (
    "attribution_driven_credit_assignment.enable=true",
    "exp_manager.train_rollout_mode=mixed",
    "exp_manager.rollout_ratio=0.5",
    "exp_manager.val_rollout_mode=both",
    "exp_manager.init_exp_before_training=true",
    "exp_manager.init_rollouts=2",
    "exp_manager.init_tasks=4",
    "exp_manager.scout.split=test",
    "exp_manager.scout.filter.n=4",
    "exp_manager.reme.enable_context_generator=true",
    "exp_manager.reme.enable_summarizer=true",
    "exp_manager.reme.updated_freq=1",
    "exp_manager.encoder.kind=hashing",
)


def trained_on(directory: Path, step: int) -> dict[str, dict[str, Any]]:
    """The rollouts that a step was trained on, by their names."""
    records = read_jsonl(directory / "trajectories" / f"step_{step}.jsonl")
    assert len(records) == len({record["trajectory_id"] for record in records}) == TASKS_A_STEP * ROLLOUTS
    assert set(Counter(record["group_id"] for record in records).values()) == {ROLLOUTS}, "groups are whole"
    return {record["trajectory_id"]: record for record in records}


def test_labels_guidance_and_log_probs_are_exact_over_updates(started: Callable[..., Launched]) -> None:
    steps = 5
    run = started(
        *ASYNC, *GUIDED, f"trainer.total_training_steps={steps}", "trainer.save_freq=1", f"trainer.test_freq={steps}"
    )
    assert run.wait() == 0, run.output
    assert run.left_behind() == set()
    models = [model_after(run, step) for step in range(steps)]
    metrics = {record["step"]: record for record in read_jsonl(run.directory / "metrics.jsonl")}
    spans, begun = 0, set[str]()
    for step in range(1, steps + 1):
        rollouts, bound = trained_on(run.directory, step), metrics[step]
        assert not begun & {record["group_id"] for record in rollouts.values()}, "no group is trained on twice"
        begun |= {record["group_id"] for record in rollouts.values()}
        assert bound["rollout/failed"] == 0 and bound["prm/labelled_rate"] == 1.0
        for record in rollouts.values():
            assert 1 <= record["began_step"] <= step, "of this step or an earlier one"
            assert int(record["group_id"].split("-")[0]) == record["began_step"]
            assert 0 <= record["min_version"] <= record["max_version"] < step
            assert record["guidance_wanted"] in (True, False)
        groups: dict[str, list[Any]] = {}
        for record in rollouts.values():
            if record["guided"]:
                groups.setdefault(record["group_id"], []).append(record["guidance"]["experience_ids"])
        assert all(len({tuple(ids) for ids in told}) == 1 for told in groups.values()), "one answer for a group"
        for row in samples(run, step):
            record, mask = rollouts[row["key"].rpartition("_")[0]], torch.tensor(row["response_mask"]).bool()
            old = (log_probs(models[step - 1], row) - torch.tensor(row["old_log_probs"]))[mask]
            assert old.abs().max() <= 1e-4, "the proximal policy is the one that is updated"
            if record["guided"]:
                continue  # trained on another prompt than it was sampled from
            versions = range(record["min_version"], record["max_version"] + 1)
            gaps = torch.stack([(log_probs(models[v], row) - torch.tensor(row["rollout_log_probs"])) for v in versions])
            assert gaps.abs().min(0).values[mask].max() <= 1e-4, "each token has the log-prob of weights that it saw"
            spans += len(versions) > 1
        fresh = [record for record in rollouts.values() if record["min_version"] == step - 1 and not record["guided"]]
        assert (MEAN in bound) == bool(fresh) and bound.get(MEAN, 0.0) <= 1e-4
        assert bound["rollout/staleness/max"] <= 4
        assert bound["rollout_corr/rollout_is_max"] <= 2.0
    assert any(STALE in record for record in metrics.values())
    assert spans, "no reply was cut off by an update and continued: nothing of that was looked at"
    assert metrics[steps]["exp_manager/scout/success"] >= 0
    validated = read_jsonl(run.directory / "validation" / f"step_{steps}.jsonl")
    assert {record["max_version"] for record in validated} == {steps}, "validation has the last weights alone"


def groups_at(checkpoint: Path) -> dict[str, str]:
    """The groups in a checkpoint's queue, and how far each was."""
    state = pickle.loads((checkpoint / "transfer_queue" / "controller_state.pkl").read_bytes())
    queue = state["partitions"]["train"]
    tags = {queue.revert_keys_mapping[index]: tag for index, tag in queue.custom_meta.items()}
    return {key: tag["status"] for key, tag in tags.items() if tag.get("is_prompt")}


def test_a_kill_in_the_middle_of_a_step_loses_nothing_that_was_promised(started: Callable[..., Launched]) -> None:
    steps = 8
    wanted = (
        *ASYNC,
        f"data.train_filter.n={TASKS_A_STEP * steps}",  # an epoch
        f"trainer.total_training_steps={steps}",
        "trainer.save_freq=2",
        "trainer.test_freq=-1",
    )
    run = started(*wanted)

    def queue_of(step: int) -> dict[str, str]:
        return groups_at(run.directory / "checkpoints" / f"global_step_{step}")

    def went_on() -> bool:
        last = run.checkpointed()
        return 0 < last < max(run.steps_done(), default=0) and "finished" in queue_of(last).values()

    run.wait_for(went_on, "a step after a checkpoint with a finished group")
    saved = run.checkpointed()
    kill(run.victims("ray::TaskRunner"), "the trainer")
    assert run.wait(240) not in (0, None)
    assert run.processes() == run.left_behind() == set()
    done = max(run.steps_done())
    assert run.checkpointed() == saved, "the test was too slow for what it wants to see"
    before = run.directory.parent / "before"
    shutil.copytree(run.directory / "trajectories", before / "trajectories")
    queue = queue_of(saved)
    finished = {group for group, status in queue.items() if status == "finished"}
    assert finished and set(queue.values()) <= {"finished", "running", "pending"}

    run = started(*wanted)
    assert run.wait() == 0, run.output
    assert run.steps_done() == list(range(saved + 1, steps + 1)), "it goes on where the checkpoint was"
    first_life: dict[str, Any] = {}
    for step in range(saved + 1, done + 1):
        first_life |= trained_on(before, step)
    tasks: Counter[str] = Counter()
    again: dict[str, Any] = {}
    for step in range(1, steps + 1):
        rollouts = trained_on(run.directory, step)
        tasks.update({record["group_id"]: record["task"]["task_id"] for record in rollouts.values()}.values())
        if step > saved:
            again |= rollouts
    assert len(tasks) == TASKS_A_STEP * steps and set(tasks.values()) == {1}, (
        "the data goes on where it was: each task of the epoch was trained on once"
    )
    assert set(queue) <= {record["group_id"] for record in again.values()}, "whatever was begun is trained on"
    kept = [name for name, record in again.items() if record["group_id"] in finished]
    assert len(kept) == len(finished) * ROLLOUTS
    for name in kept:
        assert again[name]["max_version"] <= saved
        if name in first_life:
            assert _without_credit(again[name]) == _without_credit(first_life[name]), "not rolled out again"
    model = model_after(run, saved)
    for row in samples(run, saved + 1):
        mask = torch.tensor(row["response_mask"]).bool()
        gaps = (log_probs(model, row) - torch.tensor(row["old_log_probs"]))[mask]
        assert gaps.abs().max() <= 1e-4, "the weights are those of the checkpoint"


def _without_credit(record: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in record.items() if key != "credit"}, sort_keys=True)

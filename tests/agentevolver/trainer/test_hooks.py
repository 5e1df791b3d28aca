from types import SimpleNamespace

import pytest
import torch
import transfer_queue
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agentevolver.config.checks import for_verl
from agentevolver.config.training import TrainerSettings
from agentevolver.rollout.rollout import Rollout
from agentevolver.rollout.rows import to_outputs, to_row
from agentevolver.trainer.failures import RolloutsFailed
from agentevolver.trainer.trainer import EvolverTrainerSync
from agentevolver.types import TrainingSample
from agentevolver.utils.files import read_jsonl
from tests.agentevolver.config.test_checks import basic
from tests.agentevolver.trainer.memory_queue import Queue
from tests.constants import ENDPOINT
from tests.trajectories import trajectory

SAMPLE = TrainingSample([5, 6], [7, 8, 9], [1, 0, 1], [-0.5, 0.0, -0.25], [0, -1, 0])


@pytest.fixture
def queue(monkeypatch):
    made = Queue()
    for name in ("kv_batch_put", "kv_batch_get"):
        monkeypatch.setattr(transfer_queue, name, getattr(made, name))
    return made


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes trainers of a configuration; verl's part of the constructor, which asks for Ray, is left out."""
    monkeypatch.setattr(PPOTrainerSync, "__init__", lambda self, config: setattr(self, "config", config))

    def inner(*overrides):
        trainer = EvolverTrainerSync(for_verl(basic(f"experiment.root={tmp_path}", *overrides).config))
        trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1]})
        trainer.tokenizer = SimpleNamespace(eos_token_id=1)
        trainer.use_critic, trainer.parameter_sync_step, trainer.total_training_steps = False, 1, 9
        trainer.make_parts()
        return trainer

    return inner


def rollout(number, score, group="g", **task):
    outcome = None if score is None else {"score": score, "success": score >= 1}
    return trajectory(
        group_id=group, rollout_id=number, steps=[{"index": 0}] if outcome else [], outcome=outcome,
        stop_reason="finished" if outcome else "env_error", task=task,
    )  # fmt: skip


def take(trainer, queue, step, told):
    """Have a step's rollouts come in, up to verl's first look at them."""
    rows = {}
    for one in told:
        samples = [SAMPLE] if one.outcome else []
        (output,) = to_outputs(Rollout(one, samples), eos_token_id=1, fallback_version=step - 1, validation=False)
        own = {"uid": one.group_id, "session_id": one.rollout_id, "index": 0, "global_steps": step}
        rows[f"{one.trajectory_id}_0"] = to_row(output, {**own, "data_source": "pocket", "reward_model": {}})
    fields, tags = zip(*rows.values(), strict=True)
    batch = queue.kv_batch_put(list(rows), "train", list_of_dict_to_tensordict(list(fields)), list(tags))
    trainer.global_steps, trainer.timing_raw = step, {}
    trainer.on_step_begin()
    trainer.on_sample_begin()
    return trainer._balance_batch(batch, {})


def test_failed_steps_in_a_row_end_the_run_and_the_rollouts_of_each_are_on_disk(make, queue):
    trainer = make()
    told = [rollout(number, (1.0, 0.0, None)[min(number, 2)]) for number in range(8)]
    batch = take(trainer, queue, 1, told)
    withdrawn = {key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_padding")}
    assert withdrawn >= {f"g_{number}_0" for number in range(2, 8)} and not withdrawn & {"g_0_0", "g_1_0"}
    with pytest.raises(RolloutsFailed, match="6 of 8 rollouts"):
        take(trainer, queue, 2, told)
    for step in (1, 2):
        records = read_jsonl(trainer.directory / "trajectories" / f"step_{step}.jsonl")
        assert [record["rollout_id"] for record in records] == list(range(8))


def test_a_validation_that_failed_ends_the_run_and_is_on_disk(make):
    trainer = make()
    trainer.global_steps = 3
    records = [rollout(number, None).to_dict() for number in range(2)]
    infos = {"trajectory": records, "masked": [1.0] * 2, "reward": [0.0] * 2, "success": [0.0] * 2}
    with pytest.raises(RolloutsFailed, match="2 of 2 rollouts"):
        trainer._val_metrics_update(["pocket"] * 2, ["p"] * 2, infos, [0] * 2)
    assert len(read_jsonl(trainer.directory / "validation" / "step_3.jsonl")) == 2


STEP_CREDIT = [
    f"attribution_driven_credit_assignment.{item}"
    for item in ("enable=true", "attributor=none", "stages=[outcome, hybrid_scale]")
]


@pytest.mark.parametrize("credit", [(), STEP_CREDIT], ids=["verl's advantages", "step credit"])
def test_synthetic_tasks_are_scaled_once_whoever_makes_the_advantages(make, queue, credit):
    trainer = make("task_manager.mixture.synthetic_data_ratio=1", "task_manager.n=1", *ENDPOINT, *credit)
    synthetic = {"task_id": "made", "open_query": True, "metadata": {"advantage_scale": 0.5}}
    told = [rollout(number, score) for number, score in enumerate((1.0, 0.0))]
    told += [rollout(number, score, "h", **synthetic) for number, score in enumerate((1.0, 0.0, None))]
    batch = take(trainer, queue, 1, told)
    assert [key for key in batch.keys if key.startswith("pad")], "verl's own padding belongs to no rollout"
    for row in queue.rows.values():
        row["old_log_probs"] = row["rollout_log_probs"]
    trainer._compute_advantage(batch, {})
    made = {key: row["advantages"] for key, row in queue.rows.items()}
    for number in (0, 1):
        assert made[f"g_{number}_0"].abs().sum() > 1
        assert torch.allclose(made[f"h_{number}_0"], 0.5 * made[f"g_{number}_0"])
    assert not any(made[key].any() for key, tag in queue.tags.items() if tag.get("is_padding"))


def test_failures_of_training_validation_and_fillings_are_counted_apart(make, queue, monkeypatch):
    monkeypatch.setattr(TrainerSettings, "max_failed_rollouts", 0.4)
    trainer = make()
    half = [rollout(number, (1.0, None)[number % 2]) for number in range(4)]
    records = [one.to_dict() for one in half]
    infos = {"trajectory": records, "masked": [0.0, 1.0] * 2, "reward": [1.0, 0.0] * 2, "success": [1.0, 0.0] * 2}
    monkeypatch.setattr("agentevolver.trainer.filling.roll_out", lambda *_, **__: half)
    trainer.agent_loop_manager, trainer._look_after_workers = None, None
    take(trainer, queue, 1, half)
    trainer._val_metrics_update(["pocket"] * 4, ["p"] * 4, infos, [1] * 4)
    trainer._roll_out("scout", [], 1)
    assert trainer._failures.in_a_row == 1
    whole = [rollout(number, float(number % 2)) for number in range(4)]
    take(trainer, queue, 2, whole)
    with pytest.raises(RolloutsFailed, match="2 of 4 rollouts"):
        trainer._val_metrics_update(["pocket"] * 4, ["p"] * 4, infos, [1] * 4)

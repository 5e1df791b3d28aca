"""One rank of training without Ray: a program that test_ranks.py starts WORLD_SIZE times, with what torchrun would set.

Every rank holds our whole `EvolverTrainerSync` and makes the same rows. What verl's worker group would send
to a rank each takes for itself, and what the group would collect is gathered. The trainer's methods, verl's division of
rows, workers and engine are the real ones; TransferQueue is a dict that keeps tags as it does.
"""

import copy
import itertools
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import transfer_queue
from memory_queue import Queue, column
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.protocol import BatchData
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType

from agentevolver.config.checks import for_verl, load
from agentevolver.types import GuidanceUse, Outcome, Step, StopReason, Task, Trajectory
from tests.tiny_model import tiny_model_path

ROOT = Path(__file__).parents[3]
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TASKS, ROLLOUTS, PARTITION = 2, 4, "train"

# With `last` the rows that are not trained on come after all others; `mini` is the number of tasks an optimiser step
# (1).
CASES = {
    "uneven rows, several samples a trajectory": {},
    "withdrawn rows": {"failed": ("t0_1", "t1_0", "t1_1", "t1_2"), "mini": 2},  # one of t1 is left, which says nothing
    "a rank of padding alone": {"tasks": 1, "rollouts": 2, "samples": 1, "last": True},
}


class Group:
    """verl's worker group: divides a batch, runs a method on this rank's part, gathers what the ranks return."""

    def __init__(self, queue, actor, reference):
        self.queue, self.actor, self.reference = queue, actor, reference
        # One rank is given the rows in the order in which two would have them, mini-batch by mini-batch.
        self._dispatch_info = {"actor": [0, 1]}

    def compute_log_prob(self, batch):
        return self._put(batch, self._run(self.actor.compute_log_prob, batch))

    def compute_ref_log_prob(self, batch):
        return self._put(batch, self._run(self.reference.compute_ref_log_prob, batch))

    def update_actor(self, batch):
        half = batch.extra_info["mini_batch_size"] // 2
        first, second = (
            list(range(len(batch)))[part] for part in (slice(len(batch) // 2), slice(len(batch) // 2, None))
        )
        if RANKS == 1:
            pairs = [first[i : i + half] + second[i : i + half] for i in range(0, len(first), half)]
            batch.reorder([i for pair in pairs for i in pair])
        outputs = self._run(self.actor.update_actor, batch)
        return BatchData(outputs).concat()

    def _run(self, method, batch):
        part = batch.chunk(RANKS)[RANK]
        data = self.queue.kv_batch_get(part.keys, part.partition_id, part.fields)
        extra = copy.deepcopy(batch.extra_info)
        tu.assign_non_tensor(data, **extra)
        gathered = [None] * RANKS
        dist.all_gather_object(gathered, method(data))
        return gathered

    def _put(self, batch, outputs):
        for part, output in zip(batch.chunk(RANKS), outputs, strict=True):
            tensors = output.select(*(name for name, value in output.items() if isinstance(value, torch.Tensor)))
            self.queue.kv_batch_put(part.keys, part.partition_id, tensors)
        return batch


def rollouts(case, seed):
    """The rows and records of a step: trajectories of 1 to 3 samples of any length, sampled from the tiny model."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    policy = AutoModelForCausalLM.from_pretrained(tiny_model_path(), dtype=torch.float32).eval()
    rows, failed = {}, CASES[case].get("failed", ())
    for task, rollout in itertools.product(
        range(CASES[case].get("tasks", TASKS)), range(CASES[case].get("rollouts", ROLLOUTS))
    ):
        trajectory, score, guided = f"t{task}_{rollout}", float(draw(0, 1)), draw(0, 1) > 0
        record = Trajectory(
            Task("t", "pocket"),
            group_id=f"t{task}",
            rollout_id=rollout,
            messages=[],
            steps=[Step(0, "", "", 0.0, 0, 5, truncated=False, generate_s=0.1, env_s=0.1)],
            stop_reason=StopReason.FINISHED,
            outcome=None if trajectory in failed else Outcome(score, score > 0),
            seconds=1.0,
            guidance=GuidanceUse(guided, injected="tip" if guided else ""),
        ).to_dict()
        samples = draw(1, CASES[case].get("samples", 3))
        for sample in range(samples):
            prompt, length = torch.randint(5, 250, (draw(4, 60),)), draw(4, 40)
            ids = policy.generate(
                prompt[None], do_sample=True, min_new_tokens=length, max_new_tokens=length, pad_token_id=0
            )[0]
            mask = (torch.rand(length) < 0.7).long()
            mask[-1] = 1
            scores = torch.zeros(length)
            scores[-1] = score
            extra = {"masked": trajectory in failed, "step_ids": [0] * length}
            rows[f"{trajectory}_{sample}"] = {
                "prompts": prompt, "responses": ids[len(prompt) :], "input_ids": ids,
                "position_ids": torch.arange(len(ids)),
                "attention_mask": torch.ones_like(ids), "response_mask": mask, "loss_mask": mask, "rm_scores": scores,
                "rollout_log_probs": -torch.rand(length), "uid": f"t{task}", "num_turns": 2,
                "extra_fields": extra if sample < samples - 1 else {**extra, "trajectory": record},
            }  # fmt: skip
    return rows


def draw(low, high):
    return int(torch.randint(low, high + 1, ()))


def step(trainer, queue, case, seed):
    """A step of training from a step's rollouts on, in verl's order (`_step_once`); returns what came of it."""
    rows = rollouts(case, seed)
    keys = list(rows)
    fields = {name: column([row[name] for row in rows.values()]) for name in rows[keys[0]]}
    lengths = [(len(row["prompts"]), len(row["responses"])) for row in rows.values()]
    tags = [
        {"prompt_len": p, "response_len": r, "seq_len": p + r, "min_global_steps": 1, "max_global_steps": 1}
        for p, r in lengths
    ]
    queue.rows, queue.tags = {}, {}
    batch = queue.kv_batch_put(keys, PARTITION, TensorDict(fields, batch_size=[len(keys)]), tags)
    batch.extra_info["temperature"] = 1.0
    metrics, gradients = {}, []
    trainer.timing_raw = {}
    trainer.on_sample_begin()
    batch = trainer._balance_batch(batch, metrics)
    if CASES[case].get("last"):
        batch.reorder(sorted(range(len(batch)), key=lambda i: batch.tags[i].get("is_padding", False)))
    batch = trainer._compute_old_log_prob(batch, metrics)
    batch = trainer._compute_ref_log_prob(batch, metrics)
    # As if an older policy had sampled, and the reference were far: ratios leave the clip range, and the KL term has a
    # gradient.
    torch.manual_seed(seed)
    for name, key in itertools.product(("old_log_probs", "ref_log_prob"), keys):
        queue.rows[key][name] = queue.rows[key][name] + 0.4 * torch.randn(len(queue.rows[key][name]))
    batch = trainer._compute_advantage(batch, metrics)
    engine = trainer.actor_rollout_wg.actor.actor.engine
    plain = type(engine).optimizer_step

    def recorded():
        gradients.append({name: whole(parameter.grad) for name, parameter in engine.module.named_parameters()})
        return plain(engine)

    engine.optimizer_step = recorded
    batch = trainer._update_actor(batch, metrics)
    columns = ("old_log_probs", "ref_log_prob", "entropy", "advantages", "response_mask", "clip_ratio_high", "guided")
    parts = [[bool(tag.get("is_padding")) for tag in part.tags] for part in batch.chunk(RANKS)]
    return {
        "columns": {name: {key: queue.rows[key][name] for key in keys} for name in columns},
        "withdrawn": sorted(key for key in keys if queue.tags[key].get("is_padding")),
        "untrained": parts,
        "metrics": {name: float(value) for name, value in metrics.items() if np.isscalar(value)},
        "gradients": gradients,
        **state(engine),
    }


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def state(engine):
    """The weights and the optimiser's state, whole."""
    saved = engine.optimizer.state_dict()
    return {
        "weights": {name: whole(parameter) for name, parameter in engine.module.named_parameters()},
        "optimizer": {
            i: {name: whole(value) for name, value in values.items()} for i, values in saved["state"].items()
        },
        "schedule": {name: value for name, value in engine.lr_scheduler.state_dict().items() if name != "lr_lambdas"},
    }


def make_trainer(folder, queue):
    """Our trainer over this process's workers; verl's part of the constructor, which asks for Ray, is left out."""
    overrides = [
        "device=cpu", f"actor_rollout_ref.model.path={tiny_model_path()}",
        f"experiment.root={folder}", "trainer.n_gpus_per_node=2", f"data.train_batch_size={TASKS}",
        f"actor_rollout_ref.rollout.n={ROLLOUTS}", "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        # Several micro-batches a mini-batch.
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=300", "actor_rollout_ref.actor.kl_loss_coef=0.1",
        "actor_rollout_ref.actor.optim.lr=1e-4", "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
        "exp_manager.reme.enable_context_generator=true", "exp_manager.train_rollout_mode=mixed",
        "exp_manager.rollout_ratio=0.5", "exp_manager.init_exp_before_training=true",
        "exp_manager.train_sample_mode=alldiscard", "exp_manager.selective_boosting=true",
    ]  # fmt: skip
    config = for_verl(load(ROOT / "examples" / "basic.yaml", overrides).config)
    OmegaConf.set_struct(config, False)
    config.actor_rollout_ref.actor.optim.total_training_steps = 10
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from agentevolver.trainer import trainer as evolver
    from agentevolver.trainer.loss import selective_ppo_loss
    from agentevolver.trainer.worker import PolicyWorker

    workers = []
    for role, kind in (("actor", PolicyWorker), ("ref", ActorRolloutRefWorker)):
        worker = kind(copy.deepcopy(config.actor_rollout_ref), role=role)
        worker.init_model()
        workers.append(worker)
    PPOTrainerSync.__init__ = lambda self, config: setattr(self, "config", config)
    trainer = evolver.EvolverTrainerSync(config)
    trainer.tokenizer = workers[0].actor.model_config.tokenizer
    trainer.actor_rollout_wg = trainer.ref_policy_wg = Group(queue, *workers)
    trainer.ref_in_actor, trainer.use_critic, trainer.global_steps, trainer.parameter_sync_step = False, False, 1, 1
    trainer.make_parts()
    loss = partial(
        selective_ppo_loss, config=omega_conf_to_dataclass(config.actor_rollout_ref.actor), kl_to="reference"
    )
    trainer.actor_rollout_wg.actor.set_loss_fn(loss)
    return trainer


def wait_for(path, timeout_s=240):
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.05)


def main(folder):
    # In double precision, so that a difference is one of arithmetic: in single precision sums in another order differ
    # by 1e-5.
    PrecisionType.to_dtype = staticmethod(lambda precision: torch.float64)
    torch.manual_seed(RANK)
    queue = Queue()
    for name in ("kv_batch_put", "kv_batch_get"):
        setattr(transfer_queue, name, getattr(queue, name))
    trainer = make_trainer(folder / f"ranks_{RANKS}", queue)
    actor = trainer.actor_rollout_wg.actor.actor
    results = {}
    for seed, case in enumerate(CASES, start=10):
        actor.reset()
        trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size = CASES[case].get("mini", 1)
        results[case] = step(trainer, queue, case, seed)
    trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size = 1
    # The state after the last case is saved, and loaded by the other number of ranks; then both go on.
    first = next(iter(CASES))
    actor.save_checkpoint(str(folder / f"saved_by_{RANKS}" / "actor"), global_step=1)
    results["saved"] = state(actor.engine)
    results["after saving"] = step(trainer, queue, first, seed=50)
    if RANK == 0:
        (folder / f"saved_by_{RANKS}" / "done").touch()
    other = folder / f"saved_by_{3 - RANKS}"
    wait_for(other / "done")
    actor.reset()
    actor.load_checkpoint(str(other / "actor"))
    results["loaded"] = state(actor.engine)
    results["after loading"] = step(trainer, queue, first, seed=50)
    if RANK == 0:
        torch.save(results, folder / f"results_{RANKS}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

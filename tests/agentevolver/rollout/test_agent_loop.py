"""verl's rollout worker with our episodes in it, outside of Ray: how many play at once, and what is written of those
that nobody plays."""

import asyncio
from collections import Counter, defaultdict
from functools import cache
from types import SimpleNamespace

import pytest
import transfer_queue
from verl.utils import tensordict_utils as tu

from agentevolver.config.checks import for_verl, load
from agentevolver.config.schema import RolloutSettings
from agentevolver.rollout.rows import group_name
from agentevolver.trainer.verl_plugin import agent_loop
from agentevolver.trainer.verl_plugin.agent_loop import EpisodeWorker
from agentevolver.trainer.verl_plugin.agent_loop_manager import GIVEN_UP
from agentevolver.types import Outcome, Task, Trajectory
from tests.agentevolver.config.test_checks import BASIC
from tests.agentevolver.rollout.test_rollout import FakeEnv

pytestmark = pytest.mark.thorough
STEP, ROLLOUTS, SLOTS = 3, 4, 2
TRIES = RolloutSettings.max_rollout_tries


class Engine:
    """In the place of verl's client of the rollout servers: says "ok"."""

    def __init__(self, tokenizer):
        self._ids = [*tokenizer.encode("ok"), tokenizer.eos_token_id]

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        versions = {"min_global_steps": STEP - 1, "max_global_steps": STEP - 1}
        return SimpleNamespace(
            token_ids=self._ids, log_probs=[-0.5] * len(self._ids), stop_reason="completed", extra_fields=versions
        )


class Queue:
    """TransferQueue as a worker writes to it: the rows of each partition, and the states of the groups."""

    def __init__(self):
        self.rows, self.states = defaultdict(dict), {}

    async def async_kv_put(self, key, partition_id, tag):
        self.states[key] = tag["status"]

    async def async_kv_batch_put(self, keys, fields, tags, partition_id):
        self.rows[partition_id] |= {key: (fields[i], tag) for i, (key, tag) in enumerate(zip(keys, tags, strict=True))}


@cache
def configuration():
    rollout = {"n": ROLLOUTS, "val_kwargs.n": ROLLOUTS, "max_env_worker": SLOTS}
    items = [f"actor_rollout_ref.rollout.{name}={value}" for name, value in rollout.items()]
    return for_verl(load(BASIC, ["device=cpu", *items]).config)


@pytest.fixture
def queue(monkeypatch):
    made = Queue()
    monkeypatch.setattr(transfer_queue, "init", lambda: None)
    for name in ("async_kv_put", "async_kv_batch_put"):
        monkeypatch.setattr(transfer_queue, name, getattr(made, name))
    return made


@pytest.fixture
def make(queue, monkeypatch):
    """Makes workers whose environment service is `env`."""
    monkeypatch.setattr(agent_loop, "_shared", {})

    def inner(env):
        monkeypatch.setattr(agent_loop, "AsyncEnvClient", lambda *_, **__: env)
        worker = EpisodeWorker(configuration(), None, None, [])
        worker.llm_client = Engine(worker.tokenizer)
        return worker

    return inner


def batch(*names, **options):
    """A batch of a task for each name, as the trainer hands it to a worker."""
    kind = {"scouted": {"scout": True}, "validated": {"validation": True}}
    tasks = [Task(name, "pocket", metadata=kind.get(name, {})).to_dict() for name in names]
    made = tu.get_tensordict(
        {
            "uid": [f"{name}-{place}" for place, name in enumerate(names)],
            "index": list(range(len(names))),
            "task": tasks,
            "data_source": ["pocket"] * len(names),
            "reward_model": [{}] * len(names),
        }
    )
    for name, value in {"global_steps": STEP, **options}.items():
        tu.assign_non_tensor_data(made, name, value)
    return made


async def play(worker, *batches):
    for one in batches:
        await worker.generate_sequences(one)
    await asyncio.gather(*worker.background_tasks)


class Crowded(FakeEnv):
    """Notes how many instances are open at once: of rollouts that are trained on, of others, and of all."""

    def __init__(self):
        super().__init__(length=1)
        self.most = Counter()

    async def create_instance(self, env_type, task_id, instance_id=None, params=None):
        made = await super().create_instance(env_type, task_id, instance_id, params)
        trained = sum(one.startswith("trained") for one in self.open)
        self.most |= Counter(trained=trained, aside=len(self.open) - trained, all=len(self.open))
        await asyncio.sleep(0.01)
        return made


async def test_as_many_play_at_once_as_wanted_and_validation_waits_for_no_training(make, queue):
    env = Crowded()
    worker = make(env)
    await play(worker, batch("scouted", "trained", "trained"), batch("validated", validate=True))
    assert env.most == {"trained": SLOTS, "aside": SLOTS, "all": 2 * SLOTS} and env.calls["create"] == 4 * ROLLOUTS
    assert set(queue.states.values()) == {"finished"}
    assert {name: len(rows) for name, rows in queue.rows.items()} == {"train": 3 * ROLLOUTS, "val": ROLLOUTS}


@pytest.mark.parametrize(("kind", "partition"), [("trained", "train"), ("validated", "val")])
async def test_a_group_that_is_given_up_is_told_as_failed_rollouts_and_played_by_nobody(make, queue, kind, partition):
    env, why = FakeEnv(), "its rollout worker was lost, 2 times"
    worker = make(env)
    validates = {"validate": True} if kind == "validated" else {}
    await play(worker, batch(kind, **validates, **{GIVEN_UP: why}))
    assert not env.calls and queue.states == {f"{kind}-0": "finished"}
    assert sorted(queue.rows[partition]) == [f"{kind}-0_{number}_0" for number in range(ROLLOUTS)]
    group = group_name(worker.config.data.seed, "validation", STEP, 0, kind) if validates else f"{kind}-0"
    for number, (fields, tag) in enumerate(queue.rows[partition].values()):
        extra = fields["extra_fields"]
        assert extra["masked"] and not fields["response_mask"].any() and not fields["rm_scores"].any()
        told = Trajectory.from_dict((extra["reward_extra_info"] if validates else extra)["trajectory"])
        assert (told.stop_reason, told.outcome, told.attempts, told.error) == ("env_error", None, TRIES, why)
        assert (told.group_id, told.rollout_id, told.began_step) == (group, number, STEP)
        assert tag["max_global_steps"] == STEP - 1


class Graders:
    """Raises at the second grade."""

    graded = 0

    async def grade(self, *_):
        self.graded += 1
        if self.graded == 2:
            raise KeyError("goal")
        return Outcome(1.0, True)


async def test_a_rollout_whose_code_is_broken_is_told_as_a_failed_one_of_its_group(make, queue, monkeypatch, caplog):
    monkeypatch.setattr(agent_loop, "make_graders", lambda *_: Graders())
    env = FakeEnv()
    await play(make(env), batch("trained"))
    assert queue.states == {"trained-0": "finished"} and not env.open
    assert sorted(queue.rows["train"]) == [f"trained-0_{number}_0" for number in range(ROLLOUTS)]
    told = [Trajectory.from_dict(fields["extra_fields"]["trajectory"]) for fields, _ in queue.rows["train"].values()]
    (failed,) = (one for one in told if one.outcome is None)
    assert (failed.stop_reason, failed.error) == ("agent_error", "KeyError: 'goal'")
    assert f"rollout {failed.rollout_id} of group trained-0 failed" in caplog.text and "Traceback" in caplog.text

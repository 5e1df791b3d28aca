import random
from types import SimpleNamespace

import pytest
from verl.trainer.ppo.v1 import replay_buffer
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from agentevolver.rollout.rows import group_name
from agentevolver.trainer import asynchronous
from agentevolver.trainer.asynchronous import Asynchronous, groups_on_their_way
from agentevolver.trainer.staleness import oldest_first

N = 2


class Queue:
    """TransferQueue's keys and tags."""

    def __init__(self):
        self.tags = {"train": {}, "val": {}}

    def kv_list(self, partition_id=None):
        return {name: dict(tags) for name, tags in self.tags.items() if partition_id in (None, name)}

    def kv_clear(self, keys, partition_id):
        for key in keys:
            self.tags[partition_id].pop(key, None)


class World:
    """A training of so many groups a step, whose tasks take so many steps each to be rolled out."""

    def __init__(self, queue, strategy, threshold, takes, batch=4):
        self.queue, self.takes, self.batch = queue, takes, batch
        self.step, self.named, self.begun, self.waited = 1, 0, [], 0
        self.buffer = ReplayBufferAsync("colocate_async", {}, threshold, strategy, {}, 0.0, refill_fn=self.begin)
        self.buffer._select_prompt_uids = oldest_first(
            self.buffer._select_prompt_uids, lambda partition: self.buffer.prompt_global_steps[partition]
        )
        self.buffer._wait_for_next_poll = self.wait

    def begin(self, count):
        for _ in range(count):
            name = group_name(1, "train", self.step, self.named, "t")
            self.named += 1
            took = self.takes(len(self.begun))
            self.begun.append(name)
            self.queue.tags["train"][name] = {"is_prompt": True, "status": "running", "global_steps": self.step}
            self.queue.tags["train"] |= {
                f"{name}_{i}_0": {"min_global_steps": self.step - 1, "left": took} for i in range(N)
            }
        self.finish(0)
        return count

    def finish(self, steps):
        """Let time pass: groups whose time is over are finished."""
        for key, tag in self.queue.tags["train"].items():
            if not tag.get("is_prompt"):
                tag["left"] -= steps
                group = self.queue.tags["train"].get(key.split("_")[0])
                if group is not None and tag["left"] <= 0:
                    group["status"] = "finished"

    def wait(self, partition_id, last):
        self.waited += 1
        assert self.waited < 1000, "it would wait for ever"
        self.finish(1)
        return last

    def train(self, steps, ahead=1):
        """Return for each step the groups that it is trained on, with the version of their oldest token."""
        self.begin(ahead * self.batch)
        drawn = []
        for self.step in range(1, steps + 1):
            if self.step > 1:
                self.named = 0
            self.begin(self.batch)
            batch, metrics = self.buffer.sample(global_steps=self.step, partition_id="train", batch_size=self.batch)
            versions = {
                key.split("_")[0]: tag["min_global_steps"] for key, tag in zip(batch.keys, batch.tags, strict=True)
            }
            assert len(batch.keys) == N * self.batch and len(versions) == self.batch, "groups are whole"
            drawn.append((versions, metrics))
            self.queue.kv_clear(batch.keys, "train")
            self.finish(1)
        return drawn


@pytest.fixture
def queue(monkeypatch):
    made = Queue()
    monkeypatch.setattr(replay_buffer, "tq", made)
    monkeypatch.setattr(asynchronous, "tq", made)
    return made


def slow_now_and_then(place):
    return 6 if place % 11 == 3 else random.Random(place).choice((0, 1))


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_wait_drops_nothing_and_bounds_the_age_of_what_it_waits_for(queue, threshold):
    world = World(queue, "wait", threshold, slow_now_and_then)
    drawn = world.train(12)
    trained = [group for versions, _ in drawn for group in versions]
    assert len(set(trained)) == len(trained)
    left = set(world.begun) - set(trained)
    assert left == set(groups_on_their_way()), "what was begun is trained on, or is on its way"
    for step, (versions, _) in enumerate(drawn, start=1):
        # A group that is as old as it may be holds the others up, so it is in that step's batch or the next.
        assert all(step - 1 - version <= threshold for version in versions.values())
    assert world.waited > 0, "nobody had to be waited for"


def test_drop_takes_what_is_too_old_out_and_begins_as_many(queue):
    world = World(queue, "drop", 3, slow_now_and_then)
    drawn = world.train(12)
    dropped = sum(metrics.get("training/off_policy/evicted_samples", 0) for _, metrics in drawn)
    assert dropped > 0
    for step, (versions, _) in enumerate(drawn, start=1):
        assert all(step - version <= 3 for version in versions.values())
    assert len(world.begun) == 4 + 12 * 4 + dropped


@pytest.mark.parametrize("hashed", range(5))
def test_among_finished_groups_the_one_that_was_begun_first_is_drawn_first(hashed):
    begun = {f"{step:06d}-{place:05d}-x": step for step in (3, 1, 2) for place in range(4)}
    names = list(begun)
    random.Random(hashed).shuffle(names)
    chosen = []
    select = oldest_first(lambda partition, groups, size: chosen.append(groups), lambda partition: begun)
    select("train", set(names), 6)
    assert chosen == [set(sorted(begun)[:6])]


class Steps:
    """What `Asynchronous` asks of verl's trainer to begin batches."""

    total_training_steps, global_steps = 5, 1
    config = SimpleNamespace(data=SimpleNamespace(train_batch_size=4))

    def __init__(self, queue):
        self.queue, self.begun = queue, 0

    def _add_prompts_to_generate(self, count):
        for _ in range(count):
            self.queue.tags["train"][f"g{self.begun}"] = {"is_prompt": True, "status": "running"}
            self.begun += 1


@pytest.mark.parametrize("ahead", [0, 2, 4, 8])
def test_no_more_is_begun_than_is_trained_on(queue, ahead):
    trainer = Steps(queue)
    trainer._add_prompts_to_generate(ahead)
    for trainer.global_steps in range(1, 6):
        Asynchronous._add_batch_to_generate(trainer)
        queue.kv_clear(groups_on_their_way()[:4], "train")
    assert trainer.begun == 5 * 4 and groups_on_their_way() == []

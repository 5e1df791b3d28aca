import time

import pytest

from agentevolver.trainer.timing import phases, timed_whole, untimed


class Clock:
    """Seconds that pass when they are spent."""

    def __init__(self):
        self.now = 0.0

    def spend(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


class Workers:
    """The policy's workers on two ranks."""

    def sync_seconds(self):
        return [{"send": 2.0, "wake_weights": 5.0}, {"send": 3.0, "wake_weights": 4.0}]


class Loop:
    """verl's loop, as far as timers go: which methods it calls, and which of them within a timer of its own."""

    def __init__(self, clock):
        self.clock, self.logged, self.actor_rollout_wg = clock, [], Workers()

    def timer(self, name, began):
        self.timing_raw[name] = self.timing_raw.get(name, 0.0) + self.clock.now - began

    def _init_resource_pool_mgr(self):
        self.role_worker_mapping = {}

    def on_step_begin(self):
        self.clock.spend(1)

    def prepare_step(self):
        self.clock.spend(2)
        return {}

    def on_sample_end(self):
        self.clock.spend(3)

    def _balance_batch(self, batch, metrics):
        self.clock.spend(5)
        return batch

    def on_step_end(self):
        self.clock.spend(7)
        began = self.clock.now
        self.clock.spend(11)
        self.timer("update_weights", began)

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        self.logged.append(dict(timing_raw))

    def step(self, testing=0):
        self.timing_raw = {}
        began = self.clock.now
        self.on_step_begin()
        self.prepare_step()
        gen = self.clock.now
        self.clock.spend(13)
        self.on_sample_end()
        self.timer("gen", gen)
        self._balance_batch("batch", {})
        self.clock.spend(0.25)
        self.on_step_end()
        self.timer("step", began)
        if testing:
            began = self.clock.now
            self.clock.spend(testing)
            self.timer("testing", began)
        self._compute_metrics("batch", {}, self.timing_raw, global_steps=1, epoch=0)
        self.clock.spend(0.5)


def test_phases_and_what_is_left_are_the_step(clock):
    loop = timed_whole(type("Timed", (Loop,), {}))(clock)
    loop.step(testing=100)
    loop.step()
    first, second = loop.logged
    expected = {"submit": 3, "gen": 16, "collect": 5, "update_weights": 11, "end_step": 7}
    assert phases(first) == phases(second) == expected
    assert first["untimed"] == untimed(first) == 0.25
    assert sum(expected.values()) + first["untimed"] == first["step"]
    assert first["gen/sleep"] == 3, "a part of gen, counted once"
    assert first["update_weights/send"] == 3 and first["update_weights/wake_weights"] == 5, "of the slowest rank"


def test_the_methods_that_are_timed_are_those_of_verls_loop():
    import inspect

    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from agentevolver.trainer.timing import PART_OF, PHASE_OF, PHASES

    loop = "".join(
        inspect.getsource(part) for part in (PPOTrainerSync.fit, PPOTrainerSync.step, PPOTrainerSync._step_once)
    )
    loop += inspect.getsource(PPOTrainerSync._setup)
    for method in (*PHASE_OF, *PART_OF, "_compute_metrics", "_init_resource_pool_mgr"):
        assert f"self.{method}(" in loop, f"verl's loop does not call {method} any more"
    timers = {line.split('marked_timer("')[1].split('"')[0] for line in loop.splitlines() if 'marked_timer("' in line}
    assert timers - {"step", "testing"} <= set(PHASES), "a timer of verl's that is counted in no phase"

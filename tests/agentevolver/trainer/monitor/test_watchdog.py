import asyncio
import json
import threading

import pytest

from agentevolver.config.training import WatchdogSettings
from agentevolver.rollout.rollout import RolloutPolicy, RolloutRunner
from agentevolver.trainer.monitor.log import Status
from agentevolver.trainer.monitor.watchdog import Watchdog
from agentevolver.types import StopReason, Task
from agentevolver.utils.inflight import Board, WatchedCalls, described
from context_manager.chat import ChatRenderer
from context_manager.template import CausalTemplate, ContextLimits
from tests.agentevolver.rollout.test_rollout import FakeEngine, FakeEnv
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.constants import settings_with


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def watchdog(clock, tmp_path=None, *, floor_s=100.0, factor=4.0, **options):
    log = tmp_path / "logs" / "watchdog.log" if tmp_path else None
    return Watchdog(settings_with(WatchdogSettings, floor_s=floor_s, factor=factor), log, clock=clock, **options)


def after(dog, clock, seconds):
    clock.now += seconds
    return dog.check()


def test_a_phase_is_named_when_it_is_overdue_and_again_ever_later(clock, tmp_path):
    shown = []
    dog = watchdog(clock, tmp_path, show=shown.append, waits=lambda: "rollouts x3 (for 90 s)")
    dog.enter("rollouts")
    assert after(dog, clock, 99) is None
    assert after(dog, clock, 1) == "rollouts takes 100 s by now; it waits for rollouts x3 (for 90 s)"
    said = [clock.now for _ in range(1000) if after(dog, clock, 1)]
    assert said == [200, 400, 800]
    dog.leave()
    assert shown[-1] is None and len(shown) == 5
    lines = (tmp_path / "logs" / "watchdog.log").read_text().splitlines()
    assert len(lines) == 5 and lines[-1].endswith("rollouts ended after 1100 s")
    assert dog.metrics() == {"watchdog/warnings": 4.0} and dog.metrics() == {"watchdog/warnings": 0.0}


def test_what_is_usual_decides_once_it_is_longer_than_the_floor(clock):
    dog = watchdog(clock, waits=lambda: "")
    for seconds in (50, 60, 1000):
        dog.enter("update")
        clock.now += seconds
        dog.leave()
    dog.enter("update")
    assert after(dog, clock, 239) is None
    assert after(dog, clock, 1) == "update takes 240 s by now (usually 60 s)"
    dog.enter("checkpoint")
    assert after(dog, clock, 99) is None, "another phase has its own time"
    assert after(dog, clock, 1) is not None


async def test_an_environment_that_hangs_is_named_while_the_run_waits(tmp_path):
    """A real rollout whose environment never answers, watched by the real thread; the rollout ends well once it
    does."""
    chatml = build_tokenizer(CHATML, "<|im_end|>")
    free, told = asyncio.Event(), threading.Event()

    class Hanging(FakeEnv):
        async def step(self, *arguments, **options):
            await free.wait()
            return await super().step(*arguments, **options)

    board, status = Board(), Status(tmp_path)
    env = WatchedCalls(Hanging(), "environment fake:", ("create_instance", "step", "evaluate"), board)
    runner = RolloutRunner(
        RolloutPolicy(4, 1, sparse=True, unavailable_timeout_s=0.0),
        env,
        WatchedCalls(FakeEngine(chatml), "the policy:", ("generate",), board),
        lambda: CausalTemplate(ChatRenderer(chatml), ContextLimits(1_000, 1_000, 2_000, 16, 100)),
    )

    def show(text):
        status.note(text)
        if text is not None:
            told.set()

    status.set("training")
    dog = Watchdog(WatchdogSettings(floor_s=0.2), show=show, waits=lambda: described(board.waiting()))
    dog.start()
    dog.enter("rollouts")
    rollout = asyncio.create_task(runner.run(Task(task_id="t", env_type="fake"), "g", 0, {}, {}))
    assert await asyncio.to_thread(told.wait, 30)
    stuck = json.loads((tmp_path / "status.json").read_text())["stuck"]
    assert stuck.startswith("rollouts takes") and "it waits for environment fake: step x1" in stuck
    assert not rollout.done(), "nothing was ended"
    free.set()
    assert (await rollout).trajectory.stop_reason is StopReason.FINISHED
    dog.close()
    assert "stuck" not in json.loads((tmp_path / "status.json").read_text())

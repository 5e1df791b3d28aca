"""The queue of distillation: bounded, never in the way, and not stopped by a group that fails."""

import asyncio
import time
from collections import Counter

from experience_fakes import attempt

from experience_manager.distill import Distilled
from experience_manager.manager import DistillQueue


class Work:
    """Notes the groups that it gets; waits for `gate` if there is one."""

    def __init__(self, gate=None, exhausted_after=None):
        self.gate, self.exhausted_after = gate, exhausted_after
        self.seen = []

    async def __call__(self, group, step):
        self.seen.append((group[0].task_id, step))
        await (self.gate.wait() if self.gate else asyncio.sleep(0))
        return Distilled(counts=Counter(stored=1), exhausted=len(self.seen) == self.exhausted_after)


def groups(*names):
    return [[attempt(str(name))] for name in names]


async def test_what_does_not_fit_is_left_out_and_counted_without_waiting():
    work = Work(gate=asyncio.Event())
    background = DistillQueue(work, capacity=3, concurrency=1)
    started = time.monotonic()
    taken = background.submit(groups(*range(10)), 1)
    assert taken == 3 and background.counts["dropped"] == 7 and time.monotonic() - started < 1
    work.gate.set()
    assert await background.drain(5) and len(work.seen) == 3
    await background.close()


async def test_what_came_of_groups_is_kept_in_their_order_whichever_is_quicker_or_fails():
    kept = []

    async def work(group, step):
        place = int(group[0].task_id)
        await asyncio.sleep(0.02 * (5 - place % 5))
        if place == 3:
            raise RuntimeError("something unforeseen")
        return Distilled(counts=Counter(place=place))

    async def keep(distilled):
        await asyncio.sleep(0)
        kept.append(distilled.counts["place"])

    background = DistillQueue(work, keep, capacity=20, concurrency=4)
    background.submit(groups(*range(9)))
    assert await background.drain(5)
    assert kept == [0, 1, 2, 4, 5, 6, 7, 8] and background.counts["failed_groups"] == 1
    await background.close()


async def test_when_the_budget_is_spent_what_waits_is_dropped_and_what_comes_is_refused():
    work = Work(exhausted_after=2)
    background = DistillQueue(work, capacity=10, concurrency=1)
    background.submit(groups("a", "b", "c", "d"))
    assert await background.drain(5)
    assert background.exhausted and len(work.seen) == 2 and background.counts["over_budget"] == 2
    assert background.submit(groups("e")) == 0
    await background.put(groups("f")[0])
    assert background.counts["over_budget"] == 4 and len(work.seen) == 2
    await background.close()


async def test_closing_does_not_wait_longer_than_agreed_and_says_what_was_left():
    work = Work(gate=asyncio.Event())
    background = DistillQueue(work, capacity=10, concurrency=1)
    background.submit(groups("a", "b", "c"))
    started = time.monotonic()
    await background.close(0.1)
    assert time.monotonic() - started < 5 and background.counts["dropped"] == 3

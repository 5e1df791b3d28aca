"""Pauses of the engine: who waits, and that their time is not a call's own."""

import asyncio

import pytest

from agentevolver.rollout.pause import EnginePause


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_seconds_of_pauses_add_up_and_validation_waits_for_the_engine_alone(clock):
    pause = EnginePause(clock)
    pause.set(asleep=True)
    clock.now = 3.0
    assert pause.seconds(validation=False) == pause.seconds(validation=True) == 3.0
    pause.set(asleep=False, validating=True)
    clock.now = 10.0
    assert (pause.is_on(validation=False), pause.is_on(validation=True)) == (True, False)
    pause.set(asleep=True)
    pause.set(asleep=False)
    assert (pause.seconds(validation=False), pause.seconds(validation=True)) == (10.0, 3.0)
    pause.set(validating=False)
    clock.now = 20.0
    assert (pause.seconds(validation=False), pause.seconds(validation=True)) == (10.0, 3.0)


async def test_whoever_waits_goes_on_when_the_last_pause_ends():
    pause = EnginePause()
    pause.set(asleep=True, validating=True)
    training, validation = (asyncio.ensure_future(pause.over(validation=kind)) for kind in (False, True))
    await asyncio.sleep(0)
    pause.set(asleep=False)
    await asyncio.wait_for(validation, 1)
    assert not training.done()
    pause.set(validating=False)
    await asyncio.wait_for(training, 1)


async def test_a_call_may_take_its_time_and_that_of_pauses():
    pause = EnginePause()

    async def paused_call():
        pause.set(asleep=True)
        await asyncio.sleep(0.3)
        pause.set(asleep=False)
        return "answer"

    assert await pause.within(paused_call(), 0.2, validation=False) == "answer"


async def test_a_call_that_takes_longer_is_cancelled_and_so_is_one_whose_caller_is():
    ended = []

    async def call():
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(True)

    pause = EnginePause()
    with pytest.raises(TimeoutError):
        await pause.within(call(), 0.05, validation=False)
    assert ended == [True]
    task = asyncio.ensure_future(pause.within(call(), 5, validation=False))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True, True]

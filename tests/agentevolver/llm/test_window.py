"""Concurrency that adapts: halved by a volley of refusals, grown by answers, never under one."""

from __future__ import annotations

import asyncio
import math

import pytest

from agentevolver.llm.server import Window


async def test_it_is_not_bounded_until_a_refusal_and_never_under_one() -> None:
    now = [0.0]
    window = Window(16, lambda: now[0])
    async with window.place(), window.place(), window.place(), window.place():
        assert window.size == math.inf
        for volley in range(4):
            now[0] = float(volley)
            for _ in range(5):
                window.refused(sent_at=now[0] - 0.5)
    assert window.size == 1.0


async def test_a_volley_halves_it_once_and_answers_let_it_grow_by_one_for_each_window_of_them() -> None:
    now = [1.0]
    window = Window(16, lambda: now[0])
    places = [window.place() for _ in range(12)]
    for place in places:
        await place.__aenter__()
    for _ in range(12):
        window.refused(sent_at=0.5)
    for place in places:
        await place.__aexit__(None, None, None)
    assert window.size == 6.0
    for _ in range(6):
        window.answered()
    assert window.size == pytest.approx(7.0, abs=0.1)
    for _ in range(200):
        window.answered()
    assert window.size == math.inf, "beyond the ceiling it is as before the first refusal"


async def test_no_more_than_its_size_are_let_in_first_come_first_served_and_the_cancelled_leave_no_hole() -> None:
    window = Window(16)
    window.size = 2.0
    inside: list[int] = []
    most = 0

    async def call(number: int) -> None:
        nonlocal most
        async with window.place():
            inside.append(number)
            most = max(most, window._out)
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(call(number)) for number in range(12)]
    await asyncio.sleep(0.005)
    for number in (3, 5):
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert inside == [0, 1, 2, 4, *range(6, 12)]
    assert most == 2 and window._out == 0


async def test_one_that_is_cancelled_as_its_turn_comes_gives_the_place_on() -> None:
    window = Window(16)
    window.size = 1.0
    async with window.place():
        places = [window.place() for _ in range(2)]
        waiting = [asyncio.create_task(place.__aenter__()) for place in places]
        await asyncio.sleep(0)
    waiting[0].cancel()  # its place has been given to it, and it has not run since
    await asyncio.wait_for(waiting[1], 1)
    assert window._out == 1


@pytest.mark.parametrize("given_on", [True, False])
async def test_those_that_are_cancelled_together_are_all_cancelled_and_leave_no_hole(given_on: bool) -> None:
    window = Window(16)
    window.size = 2.0

    async def hold(done: asyncio.Event) -> None:
        async with window.place():
            await done.wait()

    never, done = asyncio.Event(), asyncio.Event()
    inside = [asyncio.create_task(hold(done)) for _ in range(2)]
    waiting = [asyncio.create_task(hold(never)) for _ in range(4)]
    await asyncio.sleep(0)
    if given_on:  # the first two that wait have places, and have not run since
        done.set()
        await asyncio.sleep(0)
    for task in (*inside, *waiting):
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 4
    await asyncio.gather(*inside, return_exceptions=True)
    assert window._out == 0 and not window._waiting
    async with asyncio.timeout(1), window.place(), window.place():
        third = asyncio.create_task(window.place().__aenter__())
        await asyncio.sleep(0)
        assert not third.done(), "as many can enter as before, and no more"
        third.cancel()

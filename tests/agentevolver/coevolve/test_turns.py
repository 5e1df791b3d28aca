"""Turns of checkpoints: who waits for whom, and what becomes of those who wait when loading fails."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentevolver.coevolve.player.turns import Turns


class Loads:
    """Loads by writing down what it was asked for; raises for names in `broken`."""

    def __init__(self, *broken: str) -> None:
        self.order: list[str] = []
        self.broken = set(broken)

    async def __call__(self, name: str) -> None:
        await asyncio.sleep(0)
        self.order.append(name)
        if name in self.broken:
            raise RuntimeError(f"{name} is torn")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


class Visit:
    """Somebody who is inside until told to leave."""

    def __init__(self, turns: Turns, name: str) -> None:
        self.inside = False
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._run(turns, name))

    async def _run(self, turns: Turns, name: str) -> None:
        async with turns.of(name):
            self.inside = True
            await self.leave.wait()
            self.inside = False

    async def end(self) -> None:
        self.leave.set()
        await self.task


async def test_what_is_loaded_is_not_loaded_again_and_many_are_inside_at_once() -> None:
    load = Loads()
    turns = Turns(load, "a")
    visits = [Visit(turns, "a") for _ in range(5)]
    await until(lambda: all(visit.inside for visit in visits))
    for visit in visits:
        await visit.end()
    assert load.order == [] and turns.changes == 0


async def test_a_change_waits_for_those_inside_and_those_who_come_later_wait_behind_it() -> None:
    load = Loads()
    turns = Turns(load, "a")
    first, second = Visit(turns, "a"), Visit(turns, "a")
    await until(lambda: second.inside)
    other, third = Visit(turns, "b"), Visit(turns, "a")
    await until(lambda: turns.waiting == 2)
    await first.end()
    await asyncio.sleep(0.01)
    assert load.order == [] and not other.inside and not third.inside and second.inside
    await second.end()
    await until(lambda: other.inside)
    assert load.order == ["b"] and not third.inside
    await other.end()
    await until(lambda: third.inside)
    assert load.order == ["b", "a"]
    await third.end()


async def test_all_who_wait_for_one_checkpoint_have_one_turn() -> None:
    load = Loads()
    turns = Turns(load)
    visits = [Visit(turns, name) for name in "abcabcabc"]
    for name in "abc":
        mine = [visit for visit, wanted in zip(visits, "abcabcabc", strict=True) if wanted == name]
        await until(lambda mine=mine: all(visit.inside for visit in mine))  # type: ignore[misc]
        assert sum(visit.inside for visit in visits) == 3
        for visit in mine:
            await visit.end()
    assert load.order == ["a", "b", "c"]


async def test_loading_that_fails_is_the_error_of_those_who_waited_for_it_alone() -> None:
    load = Loads("b")
    turns = Turns(load, "a")
    inside = Visit(turns, "a")
    await until(lambda: inside.inside)
    torn, torn_too, fine = Visit(turns, "b"), Visit(turns, "b"), Visit(turns, "a")
    await inside.end()
    for visit in (torn, torn_too):
        with pytest.raises(RuntimeError, match="b is torn"):
            await visit.task
    await until(lambda: fine.inside)
    # Nobody knows what a failed load left behind, so what was there before is loaded anew.
    assert load.order == ["b", "a"] and turns.loaded == "a"
    await fine.end()


async def test_whoever_gives_up_waiting_holds_nobody_up() -> None:
    load = Loads()
    turns = Turns(load, "a")
    inside = Visit(turns, "a")
    await until(lambda: inside.inside)
    gone, later = Visit(turns, "b"), Visit(turns, "a")
    await until(lambda: turns.waiting == 2)
    gone.task.cancel()
    await asyncio.wait({gone.task})
    await inside.end()
    await until(lambda: later.inside)
    assert load.order == [], "nobody wanted b any more"
    later.task.cancel()
    await asyncio.wait({later.task})
    last = Visit(turns, "c")
    await until(lambda: last.inside)
    await last.end()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nobody_is_ever_inside_with_other_weights_and_everybody_gets_in(data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=20))
    pauses = data.draw(st.lists(st.integers(0, 4), min_size=len(wanted), max_size=len(wanted)))
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=len(wanted), max_size=len(wanted)))
    quitters = data.draw(st.sets(st.integers(0, len(wanted) - 1)))

    async def run() -> None:
        loaded, inside, came = [""], [0], set[int]()

        async def change(name: str) -> None:
            assert inside == [0]
            loaded[0] = "?"
            await asyncio.sleep(0)
            loaded[0] = name

        turns = Turns(change)

        async def visit(number: int) -> None:
            for _ in range(pauses[number]):
                await asyncio.sleep(0)
            async with turns.of(wanted[number]):
                inside[0] += 1
                try:
                    for _ in range(lengths[number]):
                        assert loaded[0] == wanted[number]
                        await asyncio.sleep(0)
                finally:
                    inside[0] -= 1
            came.add(number)

        tasks = [asyncio.create_task(visit(number)) for number in range(len(wanted))]
        for number in quitters:
            await asyncio.sleep(0)
            tasks[number].cancel()
        async with asyncio.timeout(10):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert came >= set(range(len(wanted))) - quitters
        assert inside == [0] and turns.waiting == 0

    asyncio.run(run())

"""The life of one service, with real processes: up by its health URL, its death told at once, started again a bounded
number of times."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentevolver.launcher.stack import ServiceSpec
from agentevolver.launcher.supervise import ServiceDied, SupervisedService
from agentevolver.utils.processes import ProcessId, carriers, end_carriers
from tests.agentevolver.launcher.fakes import service

pytestmark = pytest.mark.service
RUN = f"service-tests-{secrets.token_hex(3)}"


class Started(list[tuple[str, ProcessId]]):
    def note(self, name: str, process: ProcessId) -> None:
        self.append((name, process))


@pytest.fixture
async def made() -> AsyncIterator[list[SupervisedService]]:
    services: list[SupervisedService] = []
    yield services
    for one in services:
        if one.state != "stopped":
            await one.stop(asyncio.Event())
    assert end_carriers(RUN, 0.0) == set()


def make(spec: ServiceSpec, made: list[SupervisedService], started: Started | None = None) -> SupervisedService:
    made.append(SupervisedService(spec, RUN, (started if started is not None else Started()).note))
    return made[-1]


async def test_a_death_before_it_is_up_is_told_with_the_end_of_its_log(
    tmp_path: Path, made: list[SupervisedService], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentevolver.launcher")
    one = make(service(tmp_path, "broken", "--die-at-once", advice="look there"), made)
    began = time.monotonic()
    with pytest.raises(
        ServiceDied, match=r"broken ended with exit code 3 before it was up \(log: .*broken.log\); look there"
    ):
        await one.start()
    assert time.monotonic() - began < 2.0
    assert "the reason is written here" in caplog.text


async def test_one_that_never_gets_well_is_given_up_and_ended(tmp_path: Path, made: list[SupervisedService]) -> None:
    one = make(service(tmp_path, "ill", "--well-after=999", "--child", ready_timeout_s=1.0), made)
    with pytest.raises(ServiceDied, match=r"ill is not up after 1 s \(HTTP 503 warming up\)"):
        await one.start()
    assert carriers(RUN, "ill") == set()


async def test_a_death_during_the_run_is_told_within_two_seconds_and_mended(
    tmp_path: Path, made: list[SupervisedService], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentevolver.launcher")
    started = Started()
    trigger = tmp_path / "die"
    one = make(service(tmp_path, "mortal", f"--die-when={trigger}", "--child", restarts=2), made, started)
    await one.start()
    watch = asyncio.create_task(one.watch())
    trigger.touch()
    died = time.monotonic()
    while "ended with exit code 3 during the run" not in caplog.text:
        assert time.monotonic() - died < 2.0
        await asyncio.sleep(0.02)
    assert "the reason is written here" in caplog.text
    while "mortal is up again" not in caplog.text:
        assert time.monotonic() - died < 15.0
        await asyncio.sleep(0.02)
    assert one.state == "up"
    assert len(started) == 2 and not started[0][1].alive and started[1][1].alive
    assert len(carriers(RUN, "mortal")) == 2, "the first one's child was cleared away before the second start"
    watch.cancel()


async def test_restarts_are_bounded_and_the_last_word_names_the_service(
    tmp_path: Path, made: list[SupervisedService]
) -> None:
    trigger = tmp_path / "die"
    started = Started()
    one = make(service(tmp_path, "fragile", f"--die-when={trigger}", restarts=2), made, started)
    await one.start()
    watch = asyncio.create_task(one.watch())

    async def kill_whatever_comes_up() -> None:
        while True:
            trigger.touch()
            await asyncio.sleep(0.05)

    killer = asyncio.create_task(kill_whatever_comes_up())
    with pytest.raises(
        ServiceDied, match=r"fragile ended with exit code 3 .* started again 2 times; the run cannot go on"
    ):
        await asyncio.wait_for(watch, 20)
    killer.cancel()
    assert len(started) == 3


async def test_the_count_of_restarts_begins_anew_after_a_steady_time(
    tmp_path: Path, made: list[SupervisedService]
) -> None:
    trigger = tmp_path / "die"
    started = Started()
    one = make(service(tmp_path, "rare", f"--die-when={trigger}", restarts=1, steady_s=0.0), made, started)
    await one.start()
    watch = asyncio.create_task(one.watch())
    for count in (2, 3, 4):
        trigger.touch()
        while len(started) < count or one.state != "up":
            assert not watch.done()
            await asyncio.sleep(0.02)
    watch.cancel()


async def test_a_stubborn_service_is_killed_after_its_grace_with_everything_it_started(
    tmp_path: Path, made: list[SupervisedService]
) -> None:
    one = make(service(tmp_path, "stubborn", "--stubborn", "--child", grace_s=0.3), made)
    await one.start()
    assert len(carriers(RUN, "stubborn")) == 2
    began = time.monotonic()
    assert await one.stop(asyncio.Event()) == set()
    assert 0.3 <= time.monotonic() - began < 5.0
    assert carriers(RUN, "stubborn") == set()

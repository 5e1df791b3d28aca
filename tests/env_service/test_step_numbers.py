"""A numbered step is executed at most once and its reply can be fetched again, whatever the network loses, repeats or
reorders."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from counter_envs import Counter
from hypothesis import given, settings
from hypothesis import strategies as st

from env_service.errors import EnvironmentFailed, ServiceError
from env_service.hosting.host import Description, HostSpec
from env_service.hosting.links import LinkReply, LinkServer
from env_service.hosting.pool import Site, Worker, WorkerPool
from env_service.hosting.service import EnvService
from env_service.hosting.wire import Frame, FrameKind, WireDecoder, unpack
from env_service.hosting.worker import InstanceHost
from env_service.settings import ServiceSettings


class MemoryLink:
    """A link without a network: calls the instance_host, after letting other tasks run."""

    worker, pid, stuck, open = "memory", 0, 0, True

    def __init__(self) -> None:
        self.instance_host = InstanceHost(Counter, 1 << 20)
        self.steps: list[str] = []

    async def call(self, kind: FrameKind, payload: bytes, timeout_s: float) -> LinkReply:
        await asyncio.sleep(0)
        if kind is FrameKind.STEP:
            self.steps.append(unpack(payload)["action"]["content"])
        (reply,) = WireDecoder().feed(self.instance_host.answer(Frame(1, kind, payload)))
        await asyncio.sleep(0)
        return LinkReply(reply.kind, reply.payload)


class MemoryPool(WorkerPool):
    """One worker in this process."""

    ready = True

    def __init__(self, link: MemoryLink) -> None:
        spec, description = HostSpec("counter", "counter_envs:Counter"), Description("shared", 5.0)
        super().__init__(Site(spec, description, None, LinkServer(), lambda worker: None), first=None)  # type: ignore[arg-type]
        self.worker = Worker(link, host=None)  # type: ignore[arg-type]

    @property
    def workers(self) -> list[Worker]:
        return [self.worker]

    async def start(self) -> None: ...

    async def acquire(self, place: str) -> Worker:
        return self.worker

    def release(self, worker: Worker, place: str) -> None: ...

    async def stop(self) -> None: ...


def service_on(link: MemoryLink) -> EnvService:
    """Return a service whose only environment lives behind `link`."""
    service = EnvService(ServiceSettings({"counter": "counter_envs:Counter"}), launcher=None)  # type: ignore[arg-type]
    service._pools["counter"] = MemoryPool(link)
    service._taken["counter"] = 0
    return service


def act(number: int | str) -> dict[str, Any]:
    return {"role": "assistant", "content": str(number)}


FATES = st.sampled_from(["ok", "request lost", "reply lost", "sent twice"])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(FATES, max_size=4)), min_size=1, max_size=8))
def test_every_numbered_step_is_executed_exactly_once_under_any_losses(plan: list[tuple[int, list[str]]]) -> None:
    async def episode() -> None:
        link = MemoryLink()
        service = service_on(link)
        await service.create("counter", "t1", "i", {})
        total = 0
        for index, (amount, fates) in enumerate(plan):
            reply = b""
            for fate in [*fates, "ok"]:
                if fate == "request lost":
                    continue
                sent = [service.step("i", act(amount), {}, index) for _ in range(2 if fate == "sent twice" else 1)]
                replies = await asyncio.gather(*sent)
                if fate != "reply lost":
                    reply = replies[-1]
                    assert len(set(replies)) == 1
                if fate == "ok":
                    break
            total += amount
            assert unpack(reply)["state"][0]["content"] == str(total)
        assert link.steps == [str(amount) for amount, _ in plan]

    asyncio.run(episode())


async def test_a_failure_is_remembered_too_so_that_the_step_does_not_run_again() -> None:
    link = MemoryLink()
    service = service_on(link)
    await service.create("counter", "t1", "i", {})
    failures: list[ServiceError] = []
    for _ in range(2):
        with pytest.raises(EnvironmentFailed) as caught:
            await service.step("i", act("!raise"), {}, 0)
        failures.append(caught.value)
    assert failures[0].error_id == failures[1].error_id
    assert link.steps == ["!raise"]
    assert unpack(await service.step("i", act(3), {}, 1))["state"][0]["content"] == "3"


async def test_a_step_that_the_environment_refused_may_be_corrected_under_the_same_number() -> None:
    link = MemoryLink()
    service = service_on(link)
    await service.create("counter", "t1", "i", {})
    with pytest.raises(ServiceError, match="invalid literal"):
        await service.step("i", act("three"), {}, 0)
    assert unpack(await service.step("i", act(3), {}, 0))["state"][0]["content"] == "3"

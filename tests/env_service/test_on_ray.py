"""The life of a service on Ray: killed and restarted while rollouts run, stopped in order, joined to a cluster; nothing
is left of it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from local_hosts import eventually, say
from ray_service import (
    BOTH,
    CANARY,
    RAYS_OWN_AGENTS,
    ROOT,
    Served,
    all_gone,
    census,
    command_of,
    environment_of,
    folders_of,
    start,
    stop,
)

from agentevolver.rollout.engine import Generated
from agentevolver.rollout.rollout import Rollout, RolloutPolicy, RolloutRunner
from agentevolver.types import StopReason, Task
from context_manager.chat import ChatRenderer
from context_manager.template import CausalTemplate, ContextLimits
from env_service.client import AsyncEnvClient, EnvCrashed, RetryPolicy
from tests.chat_tokenizers import CHATML, build_tokenizer
from tests.free_ports import free_port

pytestmark = pytest.mark.service

ROLLOUTS = 40
AT_A_TIME = 10
STEPS = 10
THINKING_S = 0.1
LIMITS = ContextLimits(1_000, 1_000, 4_000, 16, 100)


class House:
    """A place for one service at a time, on one port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.service: Served | None = None

    def open(self) -> Served:
        """Return the service that runs, or a new one that is healthy."""
        if self.service is None or self.service.process.poll() is not None:
            self.service = start(self.port, *BOTH)
            self.service.wait_until_healthy()
        return self.service


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """The service of this module: tests may end it."""
    house = House()
    yield house
    if house.service is not None and house.service.process.poll() is None:
        stop(house.service)


class OneEngine:
    """Samples "1" after a moment: ten of them reach the counter's goal."""

    def __init__(self, reply: list[int]) -> None:
        self._reply = reply

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: object) -> Generated:
        await asyncio.sleep(THINKING_S)
        return Generated(self._reply, [-0.5] * len(self._reply), 0, 0)


def runners(client: AsyncEnvClient) -> dict[str, RolloutRunner]:
    """Return a runner for each of the two environments."""
    tokenizer = build_tokenizer(CHATML, "<|im_end|>")
    engine = OneEngine([*tokenizer.encode("1"), tokenizer.eos_token_id])
    renderer = ChatRenderer(tokenizer)

    def runner(env_type: str) -> RolloutRunner:
        policy = RolloutPolicy(max_steps=STEPS + 2, max_tries=4, sparse=True, unavailable_timeout_s=120.0)
        return RolloutRunner(policy, client, engine, lambda: CausalTemplate(renderer, LIMITS))

    return {env_type: runner(env_type) for env_type in ("counter", "lonely")}


@pytest.mark.chaos
async def test_rollouts_and_clients_outlive_a_service_that_is_killed_and_started_again(house: House) -> None:
    first, room, finished = await asyncio.to_thread(house.open), asyncio.Semaphore(AT_A_TIME), 0
    hasty, patient = RetryPolicy(tries=3, budget_s=2.0), RetryPolicy(tries=200, budget_s=200.0)
    async with AsyncEnvClient(first.url, retry=hasty) as rolling, AsyncEnvClient(first.url, retry=patient) as waiting:
        by_env = runners(rolling)

        async def roll(number: int) -> Rollout:
            nonlocal finished
            env_type = ("counter", "lonely")[number % 2]
            async with room:
                rollout = await by_env[env_type].run(Task("t1", env_type), "group", number, {}, {})
            finished += 1
            return rollout

        for name, env_type in (("old0", "counter"), ("old1", "lonely")):
            await waiting.create_instance(env_type, "t1", name)
        rollouts = [asyncio.create_task(roll(number)) for number in range(ROLLOUTS)]
        await eventually(lambda: finished >= AT_A_TIME // 2, 60)
        family = first.family()
        first.process.kill()
        first.process.wait()
        creates = [
            asyncio.create_task(waiting.create_instance("counter", "t1", f"new{number}")) for number in range(20)
        ]
        await eventually(lambda: all_gone(family, but=RAYS_OWN_AGENTS), 20)
        second = await asyncio.to_thread(house.open)
        check_rollouts(await asyncio.wait_for(asyncio.gather(*rollouts), 200))
        assert len(await asyncio.wait_for(asyncio.gather(*creates), 200)) == 20
        for name in ("old0", "old1"):
            with pytest.raises(EnvCrashed, match="create a new one"):
                await waiting.step(name, say(1), step_index=0)
        assert (await waiting.step("new0", say(2), step_index=0))["state"][0]["content"] == "2"
        await asyncio.gather(*(waiting.release_instance(f"new{number}") for number in range(20)))
    assert census(second).instances == 0
    assert not folders_of(first), "the successor sweeps up"


def check_rollouts(rollouts: list[Rollout]) -> None:
    """Every rollout is whole and graded, and some met the kill in the middle."""
    reasons = Counter(rollout.trajectory.stop_reason for rollout in rollouts)
    assert reasons == {StopReason.FINISHED: ROLLOUTS}, [rollout.trajectory.error for rollout in rollouts]
    assert all(rollout.trajectory.outcome and rollout.trajectory.outcome.score == 1.0 for rollout in rollouts)
    assert all(len(rollout.trajectory.steps) == STEPS and rollout.samples for rollout in rollouts)
    again = sum(rollout.trajectory.attempts > 1 for rollout in rollouts)
    assert AT_A_TIME // 2 <= again < ROLLOUTS


def test_sigterm_stops_everything_and_frees_the_port(house: House) -> None:
    service = house.open()
    with urllib.request.urlopen(
        urllib.request.Request(
            f"{service.url}/create", b'{"env_type": "lonely", "task_id": "t1"}', {"Content-Type": "application/json"}
        )
    ) as reply:
        assert reply.status == 200
    family = service.family()
    assert len(family) > 5 and folders_of(service)
    assert [command_of(p) for p in family if CANARY in environment_of(p).values()] == []
    assert {folder.stat().st_mode & 0o777 for folder in folders_of(service)} == {0o700}, (
        "Ray opens its own folder to everybody"
    )
    log = stop(service)
    assert service.process.returncode == 0, log
    assert all_gone(family), [p for p in family if p.is_running()]
    assert not folders_of(service)
    assert "Traceback" not in log and "SIGTERM received" not in log
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", service.port))


async def test_a_service_joins_a_cluster_spreads_over_its_nodes_and_leaves_nothing_there(tmp_path: Path) -> None:
    port = free_port()
    script = (
        "from ray.cluster_utils import Cluster; import sys, time; c = Cluster(initialize_head=True, "
        "head_node_args={'num_cpus': 1});"
    )
    script += "c.add_node(num_cpus=1); c.wait_for_nodes(); print(c.address, flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "SOME_API_KEY": CANARY}
    cluster = subprocess.Popen(
        [sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True, env=environ, cwd=ROOT
    )
    assert cluster.stdout is not None
    try:
        address = (await asyncio.to_thread(cluster.stdout.readline)).strip()
        service = start(port, *BOTH, "--ray-address", address)
        await asyncio.to_thread(service.wait_until_healthy)
        actors = [p for p in psutil.Process(cluster.pid).children(recursive=True) if "ray::Host" in command_of(p)]
        assert len({p.ppid() for p in actors}) == 2, "hosts run on both nodes"
        for actor in actors:
            assert CANARY in environment_of(actor.parent()).values(), (
                "a cluster of somebody else's hands on what it has"
            )
            assert CANARY not in str(environment_of(actor)) and "PATH" in environment_of(actor)
        async with AsyncEnvClient(service.url) as client:
            for env_type in ("counter", "lonely"):
                names = [f"{env_type}{number}" for number in range(6)]
                await asyncio.gather(*(client.create_instance(env_type, "t1", name) for name in names))
                replies = await asyncio.gather(*(client.step(name, say("!pid"), step_index=0) for name in names))
                pids = {int(reply["state"][0]["content"]) for reply in replies}
                assert len(pids) == (2 if env_type == "counter" else 6)
        children = [child for actor in actors for child in actor.children(recursive=True)]
        assert [command_of(child) for child in children if CANARY in str(environment_of(child))] == []
        await asyncio.to_thread(stop, service)
        await eventually(lambda: all_gone([*actors, *children]), 20)
        assert cluster.poll() is None
    finally:
        assert cluster.stdin is not None
        cluster.stdin.close()
        cluster.stdout.close()
        await asyncio.to_thread(cluster.wait, 60)

"""What bounds a run on many nodes: the throughput of one environment service with 1, 2 and 4 hosts, what each part that
there is once costs for a unit of work, and how many nodes keep one core of it busy.

    python -m benchmarks.scale [--seconds 5] [--parts hosts router queue journal pool page trainer] [--save costs.json]

`docs/scale.md` has its output. The first table is end to end, on this machine's cores: an environment that waits (hosts
wait with it), one that computes (so do hosts), one that does nothing (the service alone is busy). The second has unit
costs: CPU milliseconds of the process that there is once. The third is arithmetic from the second: a node's load
(LOAD) X
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.scale_envs import BURN_S, WAIT_S
from benchmarks.server import server
from env_service.client import AsyncEnvClient

HOSTS = (1, 2, 4)
THREADS = 4
INSTANCES = 64
NODES = (10, 100, 1000)
TOKENS = 8192


@dataclass(frozen=True)
class Load:
    """What one node for rollouts asks for a second: 64 rollouts at once, a turn in 4 s, 8 turns an episode, a row an
    episode; a step of 60 s."""

    turns: float = 64 / 4
    rollouts: float = 64 / 4 / 8
    step_s: float = 60.0

    @property
    def rollouts_a_step(self) -> float:
        """Rollouts of a step."""
        return self.rollouts * self.step_s


@dataclass(frozen=True)
class Cost:
    """CPU seconds of the process that there is once, for one `unit`; `part` names the process."""

    part: str
    unit: str
    seconds: float


LOAD = Load()


def of_process(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def timed(work: Callable[[], object], times: int) -> float:
    """Return the CPU seconds of this process for one call."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


# -- the environment service
# ---------------------------------------------------------------------------------------------------------------------


async def steps_per_second(url: str, seconds: float) -> float:
    """Step many instances as fast as they answer."""
    action = {"role": "assistant", "content": "go on " * 10}
    async with AsyncEnvClient(url, max_connections=INSTANCES) as client:
        names = [f"i{number}" for number in range(INSTANCES)]
        await asyncio.gather(*(client.create_instance("scale", "t0", name) for name in names))
        done, end = 0, time.perf_counter() + seconds

        async def episode(name: str) -> None:
            nonlocal done
            while time.perf_counter() < end:
                await client.step(name, action)
                done += 1

        began = time.perf_counter()
        await asyncio.gather(*(episode(name) for name in names))
        return done / (time.perf_counter() - began)


def hosts(options: argparse.Namespace, console: Console) -> list[Cost]:
    """Measure a service with 1, 2 and 4 hosts; returns what a step costs the service's own process."""
    limits = {
        "Waiting": lambda number: number * THREADS / WAIT_S,
        "Burning": lambda number: min(number, os.cpu_count() or 1) / BURN_S,
        "Idle": lambda number: None,
    }
    table = Table("environment", "hosts", "steps/s", "at most", "service, ms a step", "service, share of a core")
    costs = []
    for name, limit in limits.items():
        for number in HOSTS:
            arguments = (
                *("-m", "env_service", "serve", "--port", "PORT", "--shared-hosts", str(number)),
                *("--threads", str(THREADS), "--env", "scale", "--env-module", f"scale=benchmarks.scale_envs:{name}"),
            )
            with server(*arguments) as (url, process):
                began, cpu = time.perf_counter(), of_process(process.pid)
                rate = asyncio.run(steps_per_second(url, options.seconds))
                cpu, passed = of_process(process.pid) - cpu, time.perf_counter() - began
            most = limit(number)
            own = cpu / (rate * options.seconds)
            shown = "" if most is None else f"{most:.0f}"
            table.add_row(name, str(number), f"{rate:.0f}", shown, f"{own * 1e3:.2f}", f"{cpu / passed:.2f}")
            if name == "Idle":
                costs.append(own)
    console.print(table)
    return [Cost("environment service", "turn", min(costs))]


# -- Ray's actors that there are once
# ---------------------------------------------------------------------------------------------------------------------


def router(options: argparse.Namespace, console: Console) -> list[Cost]:
    """Measure verl's router of requests: a turn asks it twice."""
    import ray
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    actor = ray.remote(GlobalRequestLoadBalancer).remote({f"server{i}": None for i in range(16)})
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))

    async def turns(count: int) -> None:
        gate = asyncio.Semaphore(64)

        async def turn(name: str) -> None:
            async with gate:
                server_id, _ = await actor.acquire_server.remote(name)
                await actor.release_server.remote(server_id)

        await asyncio.gather(*(turn(f"r{number % 500}") for number in range(count)))

    asyncio.run(turns(500))
    count = int(400 * options.seconds)
    began, cpu = time.perf_counter(), of_process(pid)
    asyncio.run(turns(count))
    wall = time.perf_counter() - began
    console.print(f"router: {count / wall:.0f} turns/s from one client process")
    cost = (of_process(pid) - cpu) / count
    ray.kill(actor)
    return [Cost("router of requests (Ray actor)", "turn", cost)]


def queue(options: argparse.Namespace, console: Console) -> list[Cost]:
    """Measure TransferQueue: rows put and read by one client, and a list of all keys, which the trainer asks for
    again and again while it waits."""
    import ray
    import torch
    import transfer_queue as tq
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from agentevolver.trainer.transport import worker
    from agentevolver.utils import run_key

    run_key.create()
    worker.close_off()
    tq.init()
    controller = ray.get_actor("TransferQueueController", namespace="transfer_queue")
    pid = ray.get(controller.__ray_call__.remote(lambda _: os.getpid()))
    storage = [
        p.pid for p in psutil.process_iter(["cmdline"]) if "SimpleStorageUnit" in " ".join(p.info["cmdline"] or ())
    ]

    def rows(first: int, count: int) -> tuple[list[str], list[dict[str, Any]]]:
        half = TOKENS // 4
        tensors: dict[str, Any] = {
            name: torch.zeros(TOKENS, dtype=torch.int64) for name in ("input_ids", "position_ids")
        }
        tensors["prompts"] = torch.zeros(half, dtype=torch.int64)
        for name in ("responses", "response_mask", "loss_mask"):
            tensors[name] = torch.zeros(TOKENS - half, dtype=torch.int64)
        for name in ("rollout_log_probs", "rm_scores"):
            tensors[name] = torch.zeros(TOKENS - half)
        extra = {
            "extra_fields": {
                "trajectory": {"messages": ["a message " * 30] * 16},
                "step_ids": list(range(TOKENS - half)),
            }
        }
        return [f"{n:06d}-00000-a_0_0" for n in range(first, first + count)], [{**tensors, **extra}] * count

    def put(first: int, count: int) -> None:
        keys, fields = rows(first, count)
        tags = [{"status": "success", "seq_len": TOKENS}] * count
        tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train")

    put(0, 16)
    batches = max(4, int(4 * options.seconds))
    cpu = [of_process(p) for p in (pid, *storage)]
    own, began = time.process_time(), time.perf_counter()
    for number in range(1, batches + 1):
        put(number * 16, 16)
    wall = time.perf_counter() - began
    count = batches * 16
    spent = [(of_process(p) - before) / count for p, before in zip((pid, *storage), cpu, strict=True)]
    client = (time.process_time() - own) / count
    console.print(
        f"TransferQueue, rows of {TOKENS} tokens, put by one client: {count / wall:.0f} rows/s; CPU ms a row: "
        f"controller {spent[0] * 1e3:.2f}, {len(storage)} storage units {sum(spent[1:]) * 1e3:.2f}, "
        f"client {client * 1e3:.2f}"
    )
    keys = rows(0, count)[0]
    began, own = time.perf_counter(), time.process_time()
    tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["extra_fields"])
    reading = (time.process_time() - own) / count
    console.print(
        f"TransferQueue, one column of {count} rows read: {count / (time.perf_counter() - began):.0f} rows/s, the "
        f"reader's CPU {reading * 1e3:.2f} ms a row"
    )
    tq.kv_clear(keys=keys, partition_id="train")
    per_key = []
    for size in (1000, 10_000):
        names = [f"{n:06d}-00000-b" for n in range(size)]
        tq.kv_batch_put(
            keys=names, tags=[{"is_prompt": True, "status": "running", "global_steps": 1}] * size, partition_id="train"
        )
        times, cpu_before, own = 10, of_process(pid), time.process_time()
        began = time.perf_counter()
        for _ in range(times):
            tq.kv_list()
        wall = (time.perf_counter() - began) / times
        its, ours = (of_process(pid) - cpu_before) / times, (time.process_time() - own) / times
        console.print(
            f"TransferQueue, list of {size} keys: {wall * 1e3:.1f} ms; CPU ms: controller {its * 1e3:.1f}, trainer "
            f"{ours * 1e3:.1f}"
        )
        per_key.append(max(its, ours) / size)
        tq.kv_clear(keys=names, partition_id="train")
    tq.close()
    return [
        Cost("TransferQueue's controller", "rollout", spent[0]),
        Cost("TransferQueue's storage (two units together)", "rollout", sum(spent[1:])),
        Cost("list of keys while the trainer waits", "key of a list", min(per_key)),
        Cost("trainer's reading of records", "rollout", reading),
    ]


# -- files of the run
# ---------------------------------------------------------------------------------------------------------------------


def a_trajectory(number: int) -> dict[str, Any]:
    """Return a record of 8 turns, of 1.5 KB of text a turn."""
    from agentevolver.types import Outcome, Step, StopReason, Task, Trajectory

    messages = [{"role": ("user", "assistant")[turn % 2], "content": "some words of it " * 45} for turn in range(17)]
    steps = [Step(turn, "act " * 50, "seen " * 50, 0.0, 900, 100, False, 1.0, 0.1) for turn in range(8)]
    outcome = Outcome(float(number % 2), bool(number % 2))
    return Trajectory(
        Task(f"task-{number % 100}", "pocket"),
        f"000001-{number:05d}-a",
        0,
        messages,
        steps,
        StopReason.FINISHED,
        outcome,
    ).to_dict()


def trainer(options: argparse.Namespace, console: Console) -> list[Cost]:
    """Measure what the trainer's process does with each rollout's record: reads it and writes it to disk."""
    from agentevolver.types import Trajectory
    from agentevolver.utils.files import write_jsonl

    records = [a_trajectory(number) for number in range(200)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step_1.jsonl")
        cost = timed(lambda: write_jsonl(path, [Trajectory.from_dict(one).to_dict() for one in records]), 5) / 200
        size = path.stat().st_size / 200
    console.print(f"trainer: a record of {size / 1024:.0f} KiB is read and written in {cost * 1e3:.2f} ms")
    return [Cost("trainer's records of rollouts", "rollout", cost)]


def journal(options: argparse.Namespace, console: Console) -> list[Cost]:
    """Measure the journal of task making: a record is the kernel's before the next part begins."""
    from task_manager.journal import PipelineJournal

    with tempfile.TemporaryDirectory(dir=".") as folder, PipelineJournal(Path(folder)) as made:
        record, number = {"text": "some words of it " * 200}, 200
        began, cpu = time.perf_counter(), time.process_time()
        for key in range(number):
            made.put("exploration", f"k{key}", record)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    console.print(
        f"journal: {number / wall:.0f} records/s of 3.4 KB, each handed to the kernel; CPU {cpu / number * 1e3:.3f} ms "
        "a record"
    )
    return [Cost("journal of tasks, four records a task", "task made", 4 * wall / number)]


def pool(options: argparse.Namespace, console: Console) -> list[Cost]:
    """Measure the pool of experience (SQLite, vectors in memory), 20,000 experiences: a search a task, counters of 40
    experiences at once."""
    import numpy as np

    from experience_manager.experience import Experience
    from experience_manager.index import Where
    from experience_manager.pool import Pool
    from experience_manager.store import Count, Store

    class Given:
        """An encoder that knows the vectors of its texts already."""

        name = "given"
        vectors: ClassVar[dict[str, Any]] = {}

        def encode(self, texts: Sequence[str]) -> Any:
            return np.stack([self.vectors[text] for text in texts])

    def made(count: int, seed: int) -> Any:
        drawn = np.random.default_rng(seed).standard_normal((count, 384)).astype(np.float32)
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    size, times, nearest, where = 20_000, 50, 10, Where(context="You are at site k7, a small office.")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        encoder = Given()
        found = [
            Experience(f"When a task asks to change entry {i} of a list", "Look its id up by name.", id=f"{i:032x}")
            for i in range(size)
        ]
        vectors = made(size, 1)
        encoder.vectors.update((e.embedded_text("when_to_use+content"), v) for e, v in zip(found, vectors, strict=True))
        kept = Pool(Store(Path(folder) / "pool.sqlite"), encoder, threshold=0.85)
        kept.put(found)
        asked = [str(number) for number in range(times + 1)]
        encoder.vectors.update(zip(asked, made(times + 1, 2), strict=True))
        kept.search(asked[-1], nearest, where)
        texts = iter(asked)
        search = timed(lambda: kept.search(next(texts), nearest, where), times)
        began = time.perf_counter()
        for start in range(times):
            kept.count({f"{j:032x}": Count(uses=1) for j in range(start, start + 40)})
        count = (time.perf_counter() - began) / times
    console.print(
        f"pool of {size}: a search {search * 1e3:.2f} ms CPU, counters of 40 experiences {count * 1e3:.1f} ms"
    )
    return [Cost("pool of experience, a search for each group of 8", "rollout", search / 8)]


def page(options: argparse.Namespace, console: Console) -> list[Cost]:
    """Measure the page: the first look at a step's rollouts, which reads the file."""
    from agentevolver.utils.files import write_jsonl
    from agentevolver.view.trajectories import Filter, Trajectories

    number = 2000
    with tempfile.TemporaryDirectory() as folder:
        write_jsonl(Path(folder, "step_1.jsonl"), (a_trajectory(place) for place in range(number)))
        seen = Trajectories(Path(folder))
        first = timed(lambda: seen.find(Filter()), 1) / number
        again = timed(lambda: seen.find(Filter()), 20)
    console.print(
        f"page: a step of {number} rollouts, first look {first * number * 1e3:.0f} ms, later ones {again * 1e3:.1f} ms"
    )
    return [Cost("page, first look at a step", "rollout", first)]


PARTS: dict[str, Callable[[argparse.Namespace, Console], list[Cost]]] = {
    "hosts": hosts,
    "router": router,
    "queue": queue,
    "trainer": trainer,
    "journal": journal,
    "pool": pool,
    "page": page,
}


def busy(cost: Cost, nodes: float, load: Load = LOAD) -> float:
    """Return the share of one core that so many nodes keep busy; above 1 is more than it can do.

    A list of keys has the rows and groups of a step, and is asked for as often as `trainer.polling` says.
    """
    from agentevolver.trainer.polling import interval_after

    if cost.unit == "turn":
        return cost.seconds * load.turns * nodes
    if cost.unit == "rollout":
        return cost.seconds * load.rollouts * nodes
    if cost.unit == "key of a list":
        look = cost.seconds * load.rollouts_a_step * nodes * 9 / 8
        return look / interval_after(look)
    # A task made is rolled out 8 times.
    return cost.seconds * load.rollouts / 8 * nodes


def full_at(cost: Cost) -> float:
    """Return how many nodes keep one core busy."""
    few, many = 1.0, 1e9
    while many - few > 0.5:
        middle = (few + many) / 2
        few, many = (middle, many) if busy(cost, middle) < 1 else (few, middle)
    return many


def bounds(costs: list[Cost], console: Console) -> None:
    """Print how busy one core is at 10, 100 and 1,000 nodes, and how many nodes fill it."""
    table = Table(
        "part that there is once", "a unit", "ms", *(f"{nodes:,} nodes" for nodes in NODES), "a core is full at"
    )
    for cost in sorted(costs, key=lambda one: -busy(one, 1)):
        shares = (f"{busy(cost, nodes):.2f}" for nodes in NODES)
        table.add_row(cost.part, cost.unit, f"{cost.seconds * 1e3:.3f}", *shares, f"{full_at(cost):,.0f} nodes")
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement of throughput")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--save", type=Path, help="a file for the unit costs")
    options = parser.parse_args()
    console, costs = Console(width=140, highlight=False), []
    console.print(
        f"{os.cpu_count()} cores; a node: {LOAD.turns:.0f} turns/s, {LOAD.rollouts:.0f} rollouts/s of {TOKENS} tokens"
    )
    if {"router", "queue"} & set(options.parts):
        import ray

        from agentevolver.trainer.transport import worker

        # As in a run: TransferQueue's processes have the run's key, too.
        hook = {"worker_process_setup_hook": worker.HOOK}
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=hook)
    for name in options.parts:
        costs += PARTS[name](options, console)
    bounds(costs, console)
    if options.save is not None:
        options.save.write_text(json.dumps([vars(cost) for cost in costs], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

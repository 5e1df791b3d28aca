"""What hosting an environment costs, side by side: PocketWorld and BFCL, a table each.

    python benchmarks/env_service.py [--env NAME]... [--episodes N] [--steps N] [--many N]

Rows: (a) the layout of the original, one Ray actor spawned per episode behind FastAPI and pydantic; (b) this service,
shared; (c) this service, isolated; (d) the environment called directly in one process, as the limit. Columns are CPU
milliseconds of the server's whole process tree (Ray included), which other load on the machine hardly changes, next to
wall times, which it does. The client is the same for all rows and is not counted. Below the table of PocketWorld, the
measured values stand beside their targets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

import psutil  # noqa: E402

from env_service.base import Message  # noqa: E402
from env_service.client import AsyncEnvClient  # noqa: E402
from env_service.load import run_load  # noqa: E402
from env_service.registry import load  # noqa: E402

MOST_STEPS = 900
"""BFCL ends an episode after 1,000 steps."""


@dataclass(frozen=True)
class Workload:
    """An environment, how to keep its episodes going, and what its agents say."""

    name: str
    shared: str
    isolated: str
    params: dict[str, Any]
    actions: tuple[str, ...]

    def action(self, number: int) -> Message:
        """Return the message of a step."""
        return {"role": "assistant", "content": self.actions[number % len(self.actions)]}


def tool_call(name: str, /, **arguments: str) -> str:
    """Return a call as BFCL's agents write it."""
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


WORKLOADS = {
    "pocket": Workload(
        "pocket",
        "env_service.environments.pocket.env:PocketEnv",
        "benchmarks.isolated_pocket:IsolatedPocket",
        {"slack": 1_000_000},
        ("note.list", "note.find mug", "doc note", "note.add mug old"),
    ),
    "bfcl": Workload(
        "bfcl",
        "env_service.environments.bfcl.env:BfclEnv",
        "benchmarks.isolated_bfcl:IsolatedBfcl",
        {"max_steps_per_turn": 1_000},
        (
            tool_call("pwd"),
            tool_call("ls"),
            tool_call("find", path=".", name="report"),
            tool_call("ls") + tool_call("pwd"),
        ),
    ),
}


@dataclass
class Row:
    """One line of the table; None where a row has nothing to say."""

    name: str
    create_ms: float | None = None
    create_cpu_ms: float | None = None
    step_cpu_ms_alone: float | None = None
    step_ms_alone: float | None = None
    step_cpu_ms_busy: float | None = None
    steps_per_s_busy: float | None = None
    mb_per_instance: float | None = None
    p99_ms_paced: float | None = None
    create_many_ms: float | None = None


def serve_baseline(port: int, spec: str) -> None:
    """Run the original's layout: a pydantic body, an actor spawned for each episode, one remote call a step."""
    import ray
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Request(BaseModel):
        env_type: str = ""
        task_id: str | None = None
        instance_id: str | None = None
        messages: dict[str, Any] = {}
        params: dict[str, Any] = {}

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    env_class = load(spec)
    actor_class = ray.remote(env_class)
    actors: dict[str, Any] = {}
    app = FastAPI()

    async def healthz() -> str:
        return "OK"

    async def get_env_profile(request: Request) -> dict[str, Any]:
        return {"success": True, "data": env_class.get_query_list()}

    async def create(request: Request) -> dict[str, Any]:
        actors[str(request.instance_id)] = actor = actor_class.remote(
            request.task_id, request.instance_id, request.params
        )
        return {"success": True, "data": await actor.get_init_state.remote(request.params)}

    async def step(request: Request) -> dict[str, Any]:
        return {
            "success": True,
            "data": await actors[str(request.instance_id)].step.remote(request.messages, request.params),
        }

    async def release(request: Request) -> dict[str, Any]:
        actor = actors.pop(str(request.instance_id))
        await actor.close.remote()
        ray.kill(actor)
        return {"success": True, "data": None}

    app.get("/healthz")(healthz)
    for route in (get_env_profile, create, step, release):
        route.__annotations__["request"] = Request
        app.post(f"/{route.__name__}")(route)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


@contextmanager
def server(*arguments: str) -> Iterator[tuple[str, psutil.Process]]:
    """Start a server process, wait until it is healthy, and stop it at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {**os.environ, "PYTHONPATH": ROOT, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    environ.pop("ENV_SERVICE_TOKEN", None)
    process = subprocess.Popen(
        [sys.executable, *(a.replace("PORT", str(port)) for a in arguments)], cwd=ROOT, env=environ
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                if urllib.request.urlopen(f"{url}/healthz", timeout=2).status == 200:
                    break
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.25)
        else:
            raise RuntimeError(f"{arguments} did not become healthy")
        time.sleep(2.0)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def tree(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and everything below it."""
    return [process, *process.children(recursive=True)]


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process tree, ended and reaped children included."""
    total = 0.0
    for member in tree(process):
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def pss_mb(process: psutil.Process) -> float:
    """Return the memory of a process tree, shared pages divided among those who share them."""
    total = 0
    for member in tree(process):
        try:
            total += member.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


@dataclass
class Bench:
    """A running server, and the workload that it is measured with."""

    workload: Workload
    client: AsyncEnvClient
    process: psutil.Process
    tasks: list[str]

    async def create(self, name: str, number: int = 0) -> None:
        """Open an instance of the `number`th task."""
        await self.client.create_instance(
            self.workload.name, self.tasks[number % len(self.tasks)], name, self.workload.params
        )

    async def release(self, names: list[str]) -> None:
        """Release instances."""
        await asyncio.gather(*(self.client.release_instance(name) for name in names))


async def measure(row: Row, workload: Workload, url: str, process: psutil.Process, options: argparse.Namespace) -> None:
    """Fill a row's columns."""
    async with AsyncEnvClient(url, max_connections=256) as client:
        bench = Bench(workload, client, process, await client.get_env_profile(workload.name))
        warming = [f"warming{number}" for number in range(4)]
        await asyncio.gather(
            *(bench.create(name) for name in warming)
        )  # what is loaded with the first instance is no cost of the others
        await bench.release(warming)
        await asyncio.sleep(1.0)
        await creates(row, bench, options.episodes)
        await one_alone(row, bench, options.steps)
        await sixteen_at_once(row, bench, options.steps)


async def creates(row: Row, bench: Bench, episodes: int) -> None:
    """Create instances one after the other and keep them open: processes that have ended would take their CPU time
    along."""
    names = [f"create{number}" for number in range(episodes)]
    times, cpu, memory = [], cpu_s(bench.process), pss_mb(bench.process)
    for number, name in enumerate(names):
        started = time.perf_counter()
        await bench.create(name, number)
        times.append((time.perf_counter() - started) * 1000)
    await asyncio.sleep(1.0)
    row.create_ms, row.create_cpu_ms = statistics.median(times), (cpu_s(bench.process) - cpu) * 1000 / episodes
    row.mb_per_instance = (pss_mb(bench.process) - memory) / episodes
    await bench.release(names)


async def one_alone(row: Row, bench: Bench, steps: int) -> None:
    """Step one instance, each step after the reply to the last."""
    await bench.create("alone")
    await bench.client.step("alone", bench.workload.action(0))
    times, cpu = [], cpu_s(bench.process)
    for number in range(steps):
        started = time.perf_counter()
        await bench.client.step("alone", bench.workload.action(number))
        times.append((time.perf_counter() - started) * 1000)
    row.step_cpu_ms_alone, row.step_ms_alone = (cpu_s(bench.process) - cpu) * 1000 / steps, statistics.median(times)
    await bench.release(["alone"])


async def sixteen_at_once(row: Row, bench: Bench, steps: int) -> None:
    """Step sixteen instances as fast as they answer."""
    names = [f"busy{number}" for number in range(16)]
    await asyncio.gather(*(bench.create(name, number) for number, name in enumerate(names)))

    async def episode(name: str) -> None:
        for number in range(steps // 4):
            await bench.client.step(name, bench.workload.action(number))

    await asyncio.gather(*(bench.client.step(name, bench.workload.action(0)) for name in names))
    cpu, started = cpu_s(bench.process), time.perf_counter()
    await asyncio.gather(*(episode(name) for name in names))
    done = 16 * (steps // 4)
    row.steps_per_s_busy = done / (time.perf_counter() - started)
    row.step_cpu_ms_busy = (cpu_s(bench.process) - cpu) * 1000 / done
    await bench.release(names)


def direct(workload: Workload, episodes: int, steps: int) -> Row:
    """Call the environment in this process."""
    env_class = load(workload.shared)
    tasks = env_class.get_query_list()[: max(episodes, 1)]
    envs = [env_class(tasks[0], "first", workload.params)]
    started = time.process_time()
    for number, task in enumerate(tasks):
        envs.append(env_class(task, str(number), workload.params))
        envs[-1].get_init_state(workload.params)
    create = (time.process_time() - started) * 1000 / len(tasks)
    envs[1].step(workload.action(0))
    started = time.process_time()
    for number in range(steps):
        envs[1].step(workload.action(number))
    step = (time.process_time() - started) * 1000 / steps
    return Row("(d) direct call, no service", create, create, step, step, step, 1000 / step, p99_ms_paced=None)


def baseline(workload: Workload, options: argparse.Namespace) -> Row:
    """Measure the original's layout."""
    row = Row("(a) one Ray actor per episode")
    reduced = argparse.Namespace(episodes=max(1, options.episodes // 12), steps=max(4, options.steps // 4))
    with server(str(Path(__file__).resolve()), "--baseline", "PORT", workload.shared) as (url, process):
        asyncio.run(measure(row, workload, url, process, reduced))
    return row


def ours(name: str, workload: Workload, env_class: str, options: argparse.Namespace, many: int) -> Row:
    """Measure this service."""
    row = Row(name)
    arguments = (
        "serve",
        "--env",
        workload.name,
        "--env-module",
        f"{workload.name}={env_class}",
        "--max-instances",
        "2000",
    )
    with server("-m", "env_service", *arguments, "--port", "PORT") as (url, process):
        asyncio.run(measure(row, workload, url, process, options))
        load = run_load(
            url, workload.name, instances=256, steps=20, action=workload.actions[0], pause_s=0.5, params=workload.params
        )
        row.p99_ms_paced = asyncio.run(load).step_ms[1]
        row.create_many_ms = asyncio.run(open_many(workload, url, many))
    return row


async def open_many(workload: Workload, url: str, count: int) -> float:
    """Open `count` instances at once, step each, release them; returns the wall milliseconds of a create."""
    async with AsyncEnvClient(url, max_connections=64) as client:
        bench = Bench(workload, client, psutil.Process(), await client.get_env_profile(workload.name))
        names = [f"many{number}" for number in range(count)]
        started = time.perf_counter()
        await asyncio.gather(*(bench.create(name, number) for number, name in enumerate(names)))
        seconds = time.perf_counter() - started
        await asyncio.gather(*(client.step(name, workload.action(0)) for name in names))
        await bench.release(names)
    return seconds * 1000 / count


def show(workload: Workload, rows: list[Row], options: argparse.Namespace) -> None:
    """Print a table."""
    columns = [
        ("create ms", "create_ms", 1),
        ("CPU ms", "create_cpu_ms", 2),
        ("step ms, 1", "step_ms_alone", 2),
        ("CPU ms", "step_cpu_ms_alone", 3),
        ("CPU ms, 16", "step_cpu_ms_busy", 3),
        ("steps/s, 16", "steps_per_s_busy", 0),
        ("MB/instance", "mb_per_instance", 2),
        ("p99 ms, 256", "p99_ms_paced", 1),
        (f"create ms, {options.many}", "create_many_ms", 2),
    ]
    width = max(len(row.name) for row in rows)
    print(f"{workload.name:{width}}", *(f"{title:>13}" for title, _, _ in columns))
    for row in rows:
        values = [(getattr(row, field), digits) for _, field, digits in columns]
        print(
            f"{row.name:{width}}",
            *(f"{'-':>13}" if value is None else f"{value:13,.{digits}f}" for value, digits in values),
        )
    print()


TARGETS = {
    1: (("create ms", "create_ms", 20.0), ("CPU ms a step", "step_cpu_ms_alone", 0.5), ("MB an instance",
    "mb_per_instance", 1.0),
        ("p99 ms of 256", "p99_ms_paced", 50.0)),
    2: (("create ms", "create_ms", 50.0), ("CPU ms a step", "step_cpu_ms_alone", 1.2)),
}  # fmt: skip
"""By row of the table: name, field, largest value allowed."""


def compare(rows: list[Row]) -> None:
    """Print measured values beside their targets."""
    for index, targets in TARGETS.items():
        for name, field, most in targets:
            value = getattr(rows[index], field)
            print(f"{rows[index].name}: {name} {value:.2f}, at most {most:g}: {'met' if value <= most else 'MISSED'}")
    print()


def main() -> None:
    """Run all rows of all tables and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--env", action="append", choices=WORKLOADS, help="environment to measure; default: all of them"
    )
    parser.add_argument("--episodes", type=int, default=200, help="creates of (b) and (c); (a) makes a twelfth of them")
    parser.add_argument(
        "--steps", type=int, default=900, help="steps of each measurement, at most 900; (a) makes a quarter of them"
    )
    parser.add_argument(
        "--many", type=int, default=1000, help="instances that (b) opens at once; (c) opens a quarter of them"
    )
    parser.add_argument("--baseline", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.baseline:
        serve_baseline(int(options.baseline[0]), options.baseline[1])
        return
    options.steps = min(options.steps, MOST_STEPS)
    for workload in (WORKLOADS[name] for name in options.env or WORKLOADS):
        rows = [
            baseline(workload, options),
            ours("(b) this service, shared", workload, workload.shared, options, options.many),
            ours("(c) this service, isolated", workload, workload.isolated, options, options.many // 4),
            direct(workload, options.episodes, options.steps),
        ]
        show(workload, rows, options)
        if workload.name == "pocket":
            compare(rows)
    print(
        "1: one client, one step after the other; 16: sixteen as fast as they go; 256: instances that step twice a "
        "second;"
    )
    print(
        "CPU: of the server's whole process tree, per create or step; MB: proportional set size of the tree, per open "
        "instance."
    )


if __name__ == "__main__":
    main()

"""What each world of the service costs: to create, to step, to keep; one table for all that are installed.

    python benchmarks/worlds.py [--env NAME]... [--episodes N] [--seconds S] [--both | --direct]

Each world is served by a service of its own, in the kind of process that its class asks for; with `--both`, in the
other kind, too, where that does no harm. Creates and steps are one client's, one after the other: median wall time, and
CPU of the server's whole process tree beside it, which other load on the machine changes less. Memory is the tree's
proportional set size, per open instance, and what the first instance brought along (packages, data, a Java process).
With `--direct` no service is started: the class is called in a process of its own, as the limit. Actions are what an
agent may write there; an episode that is over is replaced by a new one, which is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[1])
sys.path[:] = [ROOT, *(entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent)]

import psutil  # noqa: E402

from benchmarks.env_service import cpu_s, pss_mb, server, tool_call  # noqa: E402
from env_service.base import BaseEnv, Message  # noqa: E402
from env_service.client import AsyncEnvClient, EnvServiceError  # noqa: E402
from env_service.registry import known_environments, load  # noqa: E402


@dataclass(frozen=True)
class World:
    """How a world is worked: its actions in turn, the parameters of its episodes, and the list of its tasks."""

    actions: tuple[str, ...]
    params: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, Any] = field(default_factory=dict)
    can_share: bool = True


_LINES = ("action: look around", "action: inventory")
WORLDS = {
    "pocket": World(("note.list", "note.find mug", "doc note"), {"slack": 1_000_000}),
    "bfcl": World((tool_call("pwd"), tool_call("ls")), {"max_steps_per_turn": 1_000}),
    "calc": World(("calc 1 f 2",), {}),
    "gymnasium": World(("action: right", "action: down"), {}),
    "propose": World(("hello",), {}),
    "python": World(("```python\n1 + 1\n```",), {}, can_share=False),
    "appworld": World(("```python\nprint(1)\n```",)),
    "reasoning_gym": World(("\\boxed{1}",), {}),
    "mcp": World((tool_call("note_list"),), {}, can_share=False),
    "tau2": World((tool_call("list_all_airports"),), {"user": "scripted"}, {"domains": ["airline"]}),
    "textworld": World(("action: look", "action: inventory"), {"max_steps": 1000}, {"levels": [1], "seeds": 1}, False),
    "textarena": World(tuple(f"[{cell}]" for cell in range(9)), {}, {"games": ["TicTacToe-v0"]}, False),
    "scienceworld": World(_LINES, {"max_steps": 1000}, {"tasks": ["boil"]}),
    "catalogue": World(
        (tool_call("search_tools", query="pay a person"), tool_call("load_tool", name="bank_pay")),
        {"max_steps": 1000},
        {"worlds": ["pocket"], "n": 50},
    ),
    "webshop": World(("search[red shoes]", "click[back to search]"), {"max_steps": 1000}),
}


def isolated_in_its_place(name: str, isolation: str) -> type[BaseEnv]:
    """Return a world's class, hosted otherwise than it asks."""
    return type(f"Other{name}", (load(known_environments()[name]),), {"isolation": isolation, "memory_mb": 0})


def __getattr__(name: str) -> type[BaseEnv]:
    """Return `shared_NAME` and `isolated_NAME` as classes, for `--env-module`."""
    isolation, _, world = name.partition("_")
    if isolation in ("shared", "isolated") and world in WORLDS:
        return isolated_in_its_place(world, isolation)
    raise AttributeError(name)


async def measure(name: str, world: World, url: str, process: Any, episodes: int, seconds: float) -> dict[str, float]:
    """Return the columns of one row."""
    async with AsyncEnvClient(url) as client:
        tasks = await client.get_env_profile(name, split="train", params=world.tasks)
        empty = pss_mb(process)
        await client.create_instance(name, tasks[0], "first", world.params)
        await client.step("first", said(world.actions[0]))
        await client.release_instance("first")
        await asyncio.sleep(1.0)
        before, cpu, times = pss_mb(process), cpu_s(process), []
        for number in range(episodes):
            started = time.perf_counter()
            await client.create_instance(name, tasks[number % len(tasks)], f"create{number}", world.params)
            times.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(1.0)
        row = {
            "create ms": statistics.median(times),
            "create CPU ms": (cpu_s(process) - cpu) * 1000 / episodes,
            "MB": (pss_mb(process) - before) / episodes,
            "MB first": before - empty,
        }
        for number in range(episodes):
            await client.release_instance(f"create{number}")
        return row | await steps(name, world, client, process, tasks[0], seconds)


async def steps(
    name: str, world: World, client: AsyncEnvClient, process: Any, task: str, seconds: float
) -> dict[str, float]:
    """Step one instance after the other for so long."""
    times, used, until, number = [], 0.0, time.monotonic() + seconds, 0
    while time.monotonic() < until:
        instance, over = f"steps{number}", False
        await client.create_instance(name, task, instance, world.params)
        number, cpu = number + 1, cpu_s(process)
        for turn in range(200):
            started = time.perf_counter()
            over = (await client.step(instance, said(world.actions[turn % len(world.actions)])))["is_terminated"]
            times.append((time.perf_counter() - started) * 1000)
            if over or time.monotonic() > until:
                break
        used += cpu_s(process) - cpu
        await client.release_instance(instance)
    return {"step ms": statistics.median(times), "step CPU ms": used * 1000 / len(times)}


def direct(name: str, world: World, episodes: int, seconds: float) -> dict[str, float]:
    """Return the columns of a row without a service."""
    env_class, process = load(known_environments()[name]), psutil.Process()
    tasks = env_class.get_query_list("train", world.tasks or None)
    empty = pss_mb(process)

    def begun(number: int) -> BaseEnv:
        env = env_class(tasks[number % len(tasks)], str(number), dict(world.params))
        env.get_init_state()
        return env

    first = begun(0)
    first.step(said(world.actions[0]))
    first.close()
    before, cpu, times, envs = pss_mb(process), cpu_s(process), [], []
    for number in range(episodes):
        started = time.perf_counter()
        envs.append(begun(number))
        times.append((time.perf_counter() - started) * 1000)
    used = (cpu_s(process) - cpu) * 1000 / episodes
    row = {"create ms": statistics.median(times), "create CPU ms": used}
    row |= {"MB": (pss_mb(process) - before) / episodes, "MB first": before - empty}
    for env in envs:
        env.close()
    times, spent, until = [], 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        env, cpu = begun(0), cpu_s(process)
        for turn in range(200):
            started = time.perf_counter()
            over = env.step(said(world.actions[turn % len(world.actions)]))["is_terminated"]
            times.append((time.perf_counter() - started) * 1000)
            if over or time.monotonic() > until:
                break
        spent += cpu_s(process) - cpu
        env.close()
    return row | {"step ms": statistics.median(times), "step CPU ms": spent * 1000 / len(times)}


def served(name: str, module: list[str], options: argparse.Namespace) -> dict[str, float]:
    """Return the row of a service of its own."""
    with server("-m", "env_service", "serve", "--env", name, *module, "--port", "PORT") as (url, process):
        return asyncio.run(measure(name, WORLDS[name], url, process, options.episodes, options.seconds))


def alone(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the row of `direct`, measured in a fresh process."""
    command = [sys.executable, __file__, "--one", name, "--episodes", str(options.episodes)]
    done = subprocess.run(
        [*command, "--seconds", str(options.seconds)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(" ".join(done.stderr.strip().splitlines()[-1:]))
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def said(action: str) -> Message:
    """Return an action as a message."""
    return {"role": "assistant", "content": action}


def main() -> None:
    """Measure what is asked for, print each row as it comes, and a table of them in Markdown at the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--env", action="append", choices=WORLDS, help="world to measure; default: all")
    parser.add_argument("--episodes", type=int, default=20, help="creates")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to step")
    parser.add_argument("--both", action="store_true", help="also the kind of process that the class does not ask for")
    parser.add_argument("--direct", action="store_true", help="without a service, in one process")
    parser.add_argument("--one", choices=WORLDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(direct(options.one, WORLDS[options.one], options.episodes, options.seconds)))
        return
    columns = ("create ms", "create CPU ms", "step ms", "step CPU ms", "MB", "MB first")
    lines = [f"| world | hosted | {' | '.join(columns)} |", f"|{' --- |' * (len(columns) + 2)}"]
    for name in options.env or [name for name in WORLDS if name in known_environments()]:
        own = load(known_environments()[name]).isolation
        kinds = [own] + (["isolated" if own == "shared" else "shared"] if options.both else [])
        for kind in ["direct"] if options.direct else kinds:
            if kind == "shared" and not WORLDS[name].can_share:
                continue
            module = [] if kind == own else ["--env-module", f"{name}=benchmarks.worlds:{kind}_{name}"]
            try:
                row = alone(name, options) if options.direct else served(name, module, options)
            except (EnvServiceError, RuntimeError) as error:
                print(f"{name}, {kind}: not measured: {str(error)[:200]}", file=sys.stderr)
                continue
            print(json.dumps({"world": name, "hosted": kind, **row}), flush=True)
            hosted = kind if kind in (own, "direct") else f"({kind})"
            lines.append(f"| {name} | {hosted} | {' | '.join(f'{row[column]:,.2f}' for column in columns)} |")
    print("\n".join(lines))
    print(f"{os.cpu_count()} cores; in parentheses: not as the class asks to be hosted")


if __name__ == "__main__":
    main()

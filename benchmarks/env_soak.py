"""Memory of the environment service under load for a long time: a CSV and a picture.

    python -m benchmarks.env_soak [--out docs/img/env_soak] [--minutes 10] [--episodes 64] [--env pocket]

Keeps `--episodes` episodes open, each created, stepped to its end, evaluated and released, then the next. Every five
seconds it notes the proportional set size of the service's whole process tree (Ray included), open instances, open
files and processes. At the end it prints the least-squares slope over the second half, and fails if an instance is
left.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import json
import sys
import time
import urllib.request
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import psutil

from benchmarks.env_service import WORKLOADS, Workload, pss_mb, server, tree
from env_service.client import AsyncEnvClient

EVERY_S = 5.0


@dataclass(frozen=True)
class Sample:
    """One reading of the process tree."""

    seconds: float
    pss_mb: float
    largest_mb: float
    processes: int
    files: int
    episodes_done: int


def read(process: psutil.Process, seconds: float, done: int) -> Sample:
    """Read memory (MB), processes and open files of a tree; `largest_mb` is the resident size of the service process
    itself."""
    members = tree(process)
    files = 0
    for member in members:
        try:
            files += member.num_fds()
        except psutil.NoSuchProcess:
            continue
    return Sample(
        round(seconds, 1),
        round(pss_mb(process), 2),
        round(process.memory_info().rss / 2**20, 2),
        len(members),
        files,
        done,
    )


async def soak(
    url: str, process: psutil.Process, workload: Workload, episodes: int, seconds: float, pause_s: float
) -> list[Sample]:
    """Run the load and return the samples; raises what the client raises."""
    samples, done = list[Sample](), 0
    began = time.monotonic()
    async with AsyncEnvClient(url, max_connections=episodes) as client:
        tasks = itertools.cycle(await client.get_env_profile(workload.name))

        async def agent() -> None:
            nonlocal done
            while time.monotonic() - began < seconds:
                state = await client.create_instance(workload.name, next(tasks))
                name = str(state["info"]["instance_id"])
                for index in range(20):
                    if (await client.step(name, workload.action(index), step_index=index))["is_terminated"]:
                        break
                    await asyncio.sleep(pause_s)
                await client.evaluate(name)
                await client.release_instance(name)
                done += 1

        async def watch() -> None:
            while time.monotonic() - began < seconds:
                samples.append(await asyncio.to_thread(read, process, time.monotonic() - began, done))
                await asyncio.sleep(EVERY_S)

        await asyncio.gather(watch(), *(agent() for _ in range(episodes)))
    with urllib.request.urlopen(f"{url}/instances", timeout=10) as reply:
        left = json.load(reply)["data"]
    if left:
        sys.exit(f"left open: {left}")
    return samples


def draw(samples: list[Sample], title: str, path: Path) -> None:
    """Draw memory over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.5))
    minutes = [s.seconds / 60 for s in samples]
    axis.plot(minutes, [s.pss_mb for s in samples], label="whole process tree (PSS)")
    axis.plot(minutes, [s.largest_mb for s in samples], label="service process (RSS)")
    axis.set(xlabel="minutes", ylabel="MB", title=title, ylim=(0, None))
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Command line; see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.env_soak", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/img/env_soak"), help="path without ending; .csv and .png are written"
    )
    parser.add_argument("--env", choices=WORKLOADS, default="pocket")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between the steps of an episode")
    options = parser.parse_args()
    workload = WORKLOADS[options.env]
    with server("-m", "env_service", "serve", "--env", workload.name, "--port", "PORT") as (url, process):
        samples = asyncio.run(soak(url, process, workload, options.episodes, options.minutes * 60, options.pause))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Sample))
        writer.writerows(astuple(sample) for sample in samples)
    second = samples[len(samples) // 2 :]
    slope = float(np.polyfit([s.seconds / 60 for s in second], [s.pss_mb for s in second], 1)[0])
    draw(
        samples,
        f"{options.episodes} episodes of {workload.name} at a time, {samples[-1].episodes_done:,} in all",
        options.out.with_suffix(".png"),
    )
    print(
        f"{samples[-1].episodes_done:,} episodes; PSS {second[0].pss_mb:.0f} MB half-way, {second[-1].pss_mb:.0f} MB "
        "at the end,"
    )
    print(
        f"slope of the second half {slope:+.3f} MB a minute; processes {second[0].processes} to {second[-1].processes},"
    )
    print(f"open files {second[0].files} to {second[-1].files}; no instance left")


if __name__ == "__main__":
    main()

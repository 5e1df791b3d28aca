"""Load test of a running service: throughput, and median and 99th percentile of latency."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from env_service.client import AsyncEnvClient, EnvServiceError, RetryPolicy

IMPATIENT = RetryPolicy(tries=4, budget_s=10.0)


@dataclass(frozen=True, slots=True)
class LoadReport:
    instances: int
    steps: int
    seconds: float
    create_ms: tuple[float, float]
    step_ms: tuple[float, float]

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0


def quantiles(values: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile (nearest rank)."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


async def run_load(
    url: str,
    env_type: str,
    *,
    instances: int,
    steps: int,
    action: str,
    pause_s: float,
    params: dict[str, Any] | None = None,
) -> LoadReport:
    """Open `instances` at once and let each take up to `steps` steps, `pause_s` apart. All are released, also after a
    failure."""
    create_ms: list[float] = []
    step_ms: list[float] = []

    async def episode(client: AsyncEnvClient, task: str, number: int, all_open: asyncio.Barrier) -> None:
        name = await _timed(create_ms, _create(client, env_type, task, params))
        try:
            await all_open.wait()
            await asyncio.sleep(pause_s * number / instances)
            for index in range(steps):
                result = await _timed(
                    step_ms, client.step(name, {"role": "assistant", "content": action}, step_index=index)
                )
                if result["is_terminated"]:
                    return
                await asyncio.sleep(pause_s)
        finally:
            await client.release_instance(name)

    async with AsyncEnvClient(url, max_connections=instances, retry=IMPATIENT) as client:
        tasks = await client.get_env_profile(env_type)
        all_open = asyncio.Barrier(instances + 1)
        failures: list[EnvServiceError] = []
        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(instances):
                    group.create_task(episode(client, tasks[number % len(tasks)], number, all_open))
                await all_open.wait()
                started = time.perf_counter()
        except* EnvServiceError as errors:
            failures = [error for error in errors.exceptions if isinstance(error, EnvServiceError)]
        if failures:
            raise failures[0]
        seconds = time.perf_counter() - started
    return LoadReport(instances, len(step_ms), seconds, quantiles(create_ms), quantiles(step_ms))


async def _create(client: AsyncEnvClient, env_type: str, task: str, params: dict[str, Any] | None) -> str:
    state = await client.create_instance(env_type, task, params=params)
    return str(state["info"]["instance_id"])


async def _timed(times: list[float], work: Any) -> Any:
    started = time.perf_counter()
    result = await work
    times.append((time.perf_counter() - started) * 1000)
    return result

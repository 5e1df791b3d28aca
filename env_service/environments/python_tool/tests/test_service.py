"""Under the service: a process for each instance, a sandbox below it, and nothing left of either."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil
import pytest
from local_hosts import eventually, serving

from env_service.errors import InstanceLost
from env_service.hosting.wire import unpack

pytestmark = pytest.mark.service

PYTHON = {"python": "env_service.environments.python_tool.env:PythonEnv"}
WARM = 2
"""Processes kept ready, each with a sandbox (a launcher and an interpreter) that stands."""
TASK = "train.primes.L2.0"


def code(source: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"```python\n{source}\n```"}


def living(process: psutil.Process) -> str:
    """Return the command line of a process, empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def sandboxes() -> list[psutil.Process]:
    """The launchers and interpreters below this process."""
    return [process for process in psutil.Process().children(recursive=True) if "sandbox.launcher" in living(process)]


async def test_instances_run_side_by_side_and_release_leaves_no_process() -> None:
    async with serving(PYTHON, warm=WARM) as running:
        service = running.service
        names = [f"i{number}" for number in range(6)]
        await asyncio.gather(*(service.create("python", TASK, name, {}) for name in names))
        answers = await asyncio.gather(
            *(service.step(name, code(f"import os\nos.getpid() + {n}"), {}, None) for n, name in enumerate(names))
        )
        texts = [unpack(answer)["state"][0]["content"] for answer in answers]
        assert texts == [f"Output:\n```\n{number + 1}\n```" for number in range(6)]
        await eventually(lambda: len(sandboxes()) == 2 * (6 + WARM))
        await asyncio.gather(*(service.release(name) for name in names))
        await eventually(lambda: len(sandboxes()) == 2 * WARM)
    await eventually(lambda: not sandboxes())


async def test_a_warm_process_has_a_sandbox_that_stands_so_that_a_create_does_not_wait_for_one() -> None:
    async with serving(PYTHON, warm=WARM) as running:
        await eventually(lambda: len(sandboxes()) == 2 * WARM)
        before = {process.pid for process in sandboxes()}
        started = time.perf_counter()
        await running.service.create("python", TASK, "a", {})
        assert time.perf_counter() - started < 0.2
        (worker,) = [instance.worker.link.pid for instance in running.service.instances.values() if instance.worker]
        assert {process.pid for process in psutil.Process(worker).children(recursive=True)} <= before


async def test_a_killed_instance_takes_its_sandbox_with_it() -> None:
    async with serving(PYTHON) as running:
        service = running.service
        await service.create("python", TASK, "a", {})
        (worker,) = [instance.worker.link.pid for instance in service.instances.values() if instance.worker]
        sandbox = psutil.Process(worker).children(recursive=True)
        assert len(sandbox) == 2
        stepping = asyncio.create_task(service.step("a", code("while True: pass"), {}, None))
        await asyncio.sleep(0.3)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(InstanceLost):
            await stepping
        await eventually(lambda: not any(living(process) for process in sandbox))
